"""The rules of `qpack check`. An id never changes its meaning and is never used again.

QE00x what the bytes are, QE01x newlines, QE02x JSON, QE03x YAML, QE04x Jinja, QE05x suspicious characters.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`title` is one line; `help` says what is wrong, why it matters and what to do."""

    id: str
    title: str
    help: str


_RULES = (
    Rule(
        "QE001",
        "not UTF-8",
        "The file is text in another encoding, which is known for certain. Model loaders read UTF-8, so they fail or "
        "show wrong characters. `qpack check --fix` writes it as UTF-8.",
    ),
    Rule(
        "QE002",
        "byte order mark",
        "A byte order mark stands before the text. JSON forbids it (RFC 8259), JSON and tokenizer loaders fail on it, "
        "and a chat template puts it into every prompt. `qpack check --fix` removes it.",
    ),
    Rule(
        "QE003",
        "encoding unknown",
        "The file is not UTF-8, and its bytes do not say for certain what else they are. A guess would put wrong "
        "characters into the model's prompts without anybody noticing. Look at the previews and name the encoding with "
        "`--encoding GLOB=NAME`, or save the file as UTF-8.",
    ),
    Rule(
        "QE004",
        "damaged text",
        "The file is UTF-8, UTF-16 or UTF-32 with bytes that do not belong there: it was cut off, or a tool wrote "
        "over a part of it. No encoding brings the lost characters back. Fetch the file again from where it came from.",
    ),
    Rule(
        "QE005",
        "binary, not text",
        "The bytes are not text in any encoding, or the name is one of binary files. Fetch the right file; weights "
        "belong into *.safetensors.",
    ),
    Rule(
        "QE006",
        "could be UTF-8 or GB18030",
        "The few characters outside ASCII are unusual as UTF-8 and fit GB18030 as well: the bytes of two Chinese "
        "characters may happen to be well-formed UTF-8. Look at the previews and name the encoding with "
        "`--encoding GLOB=NAME`.",
    ),
    Rule(
        "QE007",
        "control character",
        "A control character other than tab, newline, carriage return and form feed stands in the text. It comes from "
        "damage or from a terminal and does not belong in a model file. Delete it.",
    ),
    Rule(
        "QE008",
        "declared encoding does not fit",
        "An encoding was declared for this file, but its bytes are not text in it, or Python has no such codec. "
        "Correct the declaration.",
    ),
    Rule(
        "QE009",
        "too large for a text file",
        "The file is larger than any text file of a model, or than a file of its kind can be checked in reasonable "
        "time. Make sure that the name is the right one.",
    ),
    Rule(
        "QE010",
        "Git LFS pointer",
        "This is the pointer that Git LFS leaves in place of a file that was not downloaded. Run `git lfs pull` there.",
    ),
    Rule(
        "QE011",
        "newlines are not LF",
        "Lines end with CR LF or CR, so that the same file has two digests and, in a template, two prompts. "
        "`qpack check --fix` makes them LF.",
    ),
    Rule(
        "QE012",
        "carriage returns in a vocabulary",
        "In merges.txt and vocab.txt a carriage return may be part of a token. It is removed only if every line "
        "ends with CR LF and no token ends with CR. Take the file from the model's source.",
    ),
    Rule(
        "QE013",
        "not one newline at the end",
        "A configuration file ends with exactly one newline, so that it has one digest. `qpack check --fix` does that.",
    ),
    Rule("QE020", "not JSON", "The file does not parse as JSON, so no loader reads it. Correct it at the place shown."),
    Rule(
        "QE021",
        "comment in JSON",
        'JSON has no comments; strict loaders fail on them. Delete it, or make it a key such as "_comment".',
    ),
    Rule("QE022", "trailing comma in JSON", "JSON allows no comma before a closing bracket. Delete it."),
    Rule(
        "QE023",
        "NaN or Infinity in JSON",
        "JSON has no such numbers (RFC 8259, section 6); Python writes them, other readers fail. Write an object "
        'instead, {"__float__": "NaN"}, or a finite number.',
    ),
    Rule(
        "QE024",
        "key twice in a JSON object",
        "Readers differ in which of the two values they take. Delete one.",
    ),
    Rule(
        "QE025",
        "half a surrogate pair in JSON",
        "A \\u escape is half of a surrogate pair: no character, and not writable as UTF-8. Write both halves or the "
        "character itself.",
    ),
    Rule(
        "QE026", "nested too deeply", "Brackets are nested deeper than readers accept. Such a file is not a real one."
    ),
    Rule("QE030", "not YAML", "The file does not parse as YAML. Correct it at the place shown."),
    Rule("QE031", "key twice in a YAML mapping", "Readers take the last value without a word. Delete one of the two."),
    Rule(
        "QE032",
        "YAML aliases expand too far",
        "Anchors and aliases multiply into more values than any configuration has, or contain themselves. Write the "
        "values out.",
    ),
    Rule("QE040", "not a Jinja template", "The chat template does not parse, so no chat can be rendered. Correct it."),
    Rule(
        "QE050",
        "byte order mark inside the text",
        "U+FEFF stands inside the text, where two files were joined. It is invisible and becomes a token. Delete it.",
    ),
    Rule(
        "QE051",
        "characters of a double conversion",
        "U+0080 to U+009F are control characters that nobody types; they appear when UTF-8 was once read as Latin-1. "
        "The file is left alone. Compare it with its source.",
    ),
    Rule(
        "QE052",
        "replacement character",
        "U+FFFD marks a character that an earlier conversion has lost. The file is left alone. Compare it with its "
        "source.",
    ),
    Rule(
        "QE053",
        "encoding of a licence unknown",
        "The licence is not UTF-8 and its encoding is not certain. Its bytes are kept as they are. Name the encoding "
        "with `--encoding GLOB=NAME` to have it shown right.",
    ),
)

RULES = {rule.id: rule for rule in _RULES}
