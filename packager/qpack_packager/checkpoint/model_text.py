"""The text files of a checkpoint directory as clean, canonical UTF-8: each is read and repaired once, before anything
depends on what it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qpack_packager.checkpoint.json_object import JsonObject
from qpack_packager.declared_encodings import DeclaredEncodings
from qpack_packager.textfix.fix import MAX_BYTES, Fixed, fix
from qpack_packager.textfix.report import Problem, TextFacts
from qpack_schemas.bundle_files import sha256_of
from qpack_schemas.errors import InputError
from qpack_schemas.strict_json import parse_strict


@dataclass(frozen=True)
class CleanText:
    """`facts` is None for a licence whose encoding could not be decided: its bytes are kept. `warnings` are about what
    a repair leaves as it is."""

    data: bytes
    facts: TextFacts | None
    source_sha256: str
    warnings: tuple[str, ...]


class ModelText:
    """`declared` are the encodings that a person gave, `legacy` those usual at the site; see textfix."""

    def __init__(self, directory: Path, declared: DeclaredEncodings | None = None, legacy: Sequence[str] = ()):
        self.directory, self.declared, self.legacy = directory, declared or DeclaredEncodings(), tuple(legacy)
        self._clean: dict[str, CleanText] = {}

    def __contains__(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def clean(self, name: str) -> CleanText:
        """One file. Raises InputError with every problem that can't be repaired without a guess."""
        if name not in self._clean:
            path = self.directory / name
            if path.stat().st_size > MAX_BYTES:
                raise InputError(f"has {path.stat().st_size} bytes, a text file at most {MAX_BYTES}", where=str(path))
            fixed = fix(name, path.read_bytes(), declared=self.declared.of(path), legacy=self.legacy)
            if fixed.data is None:
                raise refusal(path, fixed)
            lasting = [problem for problem in fixed.problems if not problem.fixable]
            warnings = tuple(_words(path, problem) for problem in lasting)
            self._clean[name] = CleanText(fixed.data, fixed.facts, sha256_of(path), warnings)
        return self._clean[name]

    def as_found(self, name: str) -> str | None:
        """The text of a file before it was made canonical, but for a byte order mark; None if it can't be decoded."""
        facts = self.clean(name).facts
        return facts and (self.directory / name).read_bytes().decode(facts.encoding).removeprefix("\ufeff")

    def text(self, name: str) -> str:
        return self.clean(name).data.decode("utf-8")

    def object(self, name: str) -> JsonObject:
        """The object in a JSON file. Raises InputError if it is absent, not strict JSON or no object."""
        path = str(self.directory / name)
        if name not in self:
            raise InputError("is absent", where=path, remedy="copy it from where the checkpoint came from")
        return JsonObject(parse_strict(self.text(name), path), path)


def refusal(path: Path, fixed: Fixed) -> InputError:
    """Why a file can't be made clean: the first problem, and how many more there are."""
    errors = [problem for problem in fixed.problems if problem.severity == "error" and not problem.fixable]
    more = f"\n  and {len(errors) - 1} more; `qpack check {path}` shows all" if len(errors) > 1 else ""
    return InputError(_words(None, errors[0]) + more, where=str(path))


def _words(path: Path | None, problem: Problem) -> str:
    place = f"line {problem.line}, column {problem.column}: " if problem.line is not None else ""
    return (f"{path.name}: " if path else "") + f"{place}{problem.message} ({problem.rule})"
