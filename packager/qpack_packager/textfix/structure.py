"""Whether a decoded text is what its name promises: strict JSON, YAML without a key twice, a template that parses.

Nothing here evaluates: YAML is composed and never constructed, templates are parsed and never rendered.
"""

from collections.abc import Iterator

import yaml
from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from qpack_packager.textfix.kinds import Kind
from qpack_packager.textfix.report import Problem, place, preview
from qpack_schemas.strict_json import JsonError, parse_strict

# Both parsers are written in Python: a megabyte takes them ten seconds, and no published template has 200 kB.
MAX_TEMPLATE = 1 << 18  # characters
MAX_YAML = 1 << 17
MAX_YAML_NODES = 100_000  # after aliases are expanded


def check(text: str, kind: Kind) -> list[Problem]:
    """What is wrong with the structure of a text of this kind; the first fault only, as parsers stop there."""
    match kind:
        case Kind.CONFIG | Kind.TOKENIZER:
            return list(_check_json(text))
        case Kind.YAML:
            return list(_check_yaml(text))
        case Kind.TEMPLATE:
            return list(_check_template(text))
        case _:
            return []


def _problem(rule: str, message: str, text: str, index: int | None = None) -> Problem:
    if index is None:
        return Problem(rule, "error", False, message)
    return Problem(rule, "error", False, message, *place(text, index), preview=preview(text, index))


def _check_json(text: str) -> Iterator[Problem]:
    rules = {"number": "QE023", "duplicate": "QE024", "surrogate": "QE025", "depth": "QE026"}
    try:
        parse_strict(text, "")
    except JsonError as error:
        rule = rules.get(error.fault) or _syntax_rule(text, error.index or 0)
        hint = ' (write {"__float__": "..."} or a finite number)' if rule == "QE023" else ""
        yield _problem(rule, error.reason + hint, text, error.index)


def _syntax_rule(text: str, index: int) -> str:
    """Python reports a comment and a trailing comma as a missing value or key; it stops at or just before the
    culprit."""
    rest = text[index : index + 200].lstrip(" \t\r\n")
    before = text[max(index - 200, 0) : index].rstrip(" \t\r\n")
    if rest.startswith(("//", "/*", "#")):
        return "QE021"
    closes = rest[:1] in ("}", "]")
    return "QE022" if (closes and before.endswith(",")) or _comma_then_bracket(rest) else "QE020"


def _comma_then_bracket(rest: str) -> bool:
    return rest.startswith(",") and rest[1:].lstrip(" \t\r\n")[:1] in ("}", "]")


def _check_yaml(text: str) -> Iterator[Problem]:
    if len(text) > MAX_YAML:
        yield _problem("QE009", f"{len(text)} characters of YAML; more than {MAX_YAML} are not checked", text)
        return
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if document is not None and not _expands_within(document, {}):
                yield _problem("QE032", f"aliases expand to more than {MAX_YAML_NODES} values", text)
                return
            if (key := _repeated_key(document)) is not None:
                mark = key.start_mark
                yield _problem("QE031", f"key {key.value!r} stands twice in one mapping", text, mark.index)
                return
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        yield _problem("QE030", error.problem or error.context or "does not parse", text, mark.index if mark else None)
    except yaml.reader.ReaderError as error:
        index = min(error.position, len(text) - 1)
        yield _problem("QE030", f"U+{ord(text[index]):04X} is not allowed in YAML", text, index)
    except RecursionError:
        yield _problem("QE026", "is nested too deeply", text)


def _expands_within(document: yaml.Node, sizes: dict[int, int]) -> bool:
    """Whether the document has at most MAX_YAML_NODES values once aliases are expanded. `sizes` is by identity of a
    node; 0 marks one that is being counted, so that a node inside itself is seen."""

    def size(node: yaml.Node) -> int:
        if (known := sizes.get(id(node))) is not None:
            return known or MAX_YAML_NODES + 1
        sizes[id(node)] = 0
        sizes[id(node)] = 1 + sum(size(child) for child in _children(node))
        return sizes[id(node)]

    return size(document) <= MAX_YAML_NODES


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _repeated_key(document: yaml.Node | None) -> yaml.ScalarNode | None:
    """The second of two equal keys of one mapping. Call only once the expanded size is known to be bounded."""
    pending = [document] if document is not None else []
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.MappingNode):
            seen: set[tuple[str, str]] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in seen:
                        return key
                    seen.add((key.tag, key.value))
        pending += _children(node)
    return None


class _Generation(Extension):
    """`{% generation %}`, with which transformers marks what the assistant said."""

    tags = {"generation"}  # noqa: RUF012  # Jinja declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_template(text: str) -> Iterator[Problem]:
    if len(text) > MAX_TEMPLATE:
        yield _problem("QE009", f"a template of {len(text)} characters; more than {MAX_TEMPLATE} are not checked", text)
        return
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        lines = text.split("\n")
        index = sum(len(line) + 1 for line in lines[: error.lineno - 1])
        yield _problem("QE040", error.message or "does not parse", text, min(index, len(text)))
    except ValueError as error:  # CPython's limit on digits
        yield _problem("QE040", str(error), text)
    except RecursionError:
        yield _problem("QE026", "is nested too deeply", text)
