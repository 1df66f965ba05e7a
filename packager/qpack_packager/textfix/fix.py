"""One text file: decode it, check it, make it canonical."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from qpack_packager.textfix.canonical import canonicalize, newlines_of
from qpack_packager.textfix.decode import Decoded, decode, offset_of
from qpack_packager.textfix.kinds import Kind, kind_of
from qpack_packager.textfix.report import Problem, Refused, TextFacts
from qpack_packager.textfix.structure import check
from qpack_packager.textfix.suspicious import suspicious
from qpack_schemas.strict_json import GIT_LFS

MAX_BYTES = 64 << 20  # the largest tokenizer.json that is published has about 33 MB; others may have a quarter


@dataclass(frozen=True)
class Fixed:
    """`data` is the clean canonical UTF-8, or None if the file is refused, which is when a problem is an error that
    is not fixable. `facts` is None if it could not be decoded. Only a licence can have data without facts: the source
    bytes, kept. The file is clean if `data` equals the source."""

    data: bytes | None
    facts: TextFacts | None
    problems: list[Problem]


def fix(
    name: str,
    data: bytes,
    *,
    declared: str | None = None,
    legacy: Sequence[str] = (),
    vocabulary: Collection[str] = (),
) -> Fixed:
    """Decodes, checks and canonicalises `data`. Never raises for content.

    `name` decides the kind of file. `declared` is the encoding that a person gave for this file; it must decode and
    parse. `legacy` are the encodings of a site, of the five CJK ones; they settle a choice that is open otherwise.
    `vocabulary` are the tokens that belong to a merges.txt. Files above MAX_BYTES are refused: check the size before
    reading."""
    kind = kind_of(name)
    if (refusal := _refusal(kind, data)) is not None:
        return Fixed(None, None, [refusal])
    try:
        decoded = decode(data, lambda text: not check(text, kind), declared, legacy)
    except Refused as refused:
        return _undecodable(kind, data, refused.problem)
    text, problems = canonicalize(decoded.text, kind, vocabulary)
    problems = [*_encoding_problems(decoded), *problems, *check(decoded.text, kind), *suspicious(decoded.text, kind)]
    facts = TextFacts(decoded.encoding, decoded.known_by, decoded.bom, newlines_of(decoded.text))
    refused = any(problem.severity == "error" and not problem.fixable for problem in problems)
    return Fixed(
        None if refused else text.encode("utf-8"), facts, [_with_offset(problem, decoded) for problem in problems]
    )


def _refusal(kind: Kind, data: bytes) -> Problem | None:
    """What is seen without decoding."""
    if data.startswith(GIT_LFS):
        return Problem(
            "QE010", "error", False, "this is a Git LFS pointer, not the file itself; run `git lfs pull`", 1, 1, 0
        )
    if kind is Kind.NEVER:
        return Problem("QE005", "error", False, "by its name this is no text file of a model")
    most = MAX_BYTES if kind is Kind.TOKENIZER else MAX_BYTES // 4
    if len(data) > most:
        return Problem("QE009", "error", False, f"has {len(data)} bytes; files of this kind have at most {most}")
    return None


def _undecodable(kind: Kind, data: bytes, problem: Problem) -> Fixed:
    """A licence must be shipped whatever its encoding: undecided, its bytes are kept."""
    if kind is Kind.LICENSE and problem.rule in ("QE003", "QE006"):
        return Fixed(data, None, [replace(problem, rule="QE053", severity="warning")])
    return Fixed(None, None, [problem])


def _encoding_problems(decoded: Decoded) -> list[Problem]:
    problems = []
    if decoded.encoding not in ("utf-8", "ascii"):
        how = {
            "bom": "its byte order mark says so",
            "nul-pattern": "its NUL bytes say so",
            "escape": "its escapes say so",
        }
        known = how.get(decoded.known_by, decoded.known_by)
        problems.append(Problem("QE001", "error", True, f"is {decoded.encoding}, not UTF-8 ({known})", 1, 1, 0))
    if decoded.bom:
        problems.append(Problem("QE002", "error", True, "begins with a byte order mark", 1, 1, 0))
    return problems


def _with_offset(problem: Problem, decoded: Decoded) -> Problem:
    """Adds the offset in the source of a place in the text."""
    if problem.line is None or problem.column is None or problem.offset is not None:
        return problem
    start = 0
    for _ in range(problem.line - 1):
        start = decoded.text.index("\n", start) + 1
    return replace(problem, offset=offset_of(decoded, start + problem.column - 1))
