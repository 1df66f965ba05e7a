"""The text files of a bundle: model/*.json, the chat template and the licences, checked before they are copied.

Only clean UTF-8 enters: a byte order mark, another encoding, NaN in JSON or a duplicate key is refused with its place.
"""

import re
from pathlib import Path

from qpack_packager.bundle_writer import BundleWriter
from qpack_packager.checkpoint.checkpoint import CONFIG
from qpack_packager.checkpoint.tokenizer_facts import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_chat_template,
)
from qpack_schemas.bundle_files import sha256_of
from qpack_schemas.errors import InputError
from qpack_schemas.manifest import TextFile
from qpack_schemas.strict_json import load_strict, load_text

JSON_FILES = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG)
NAME = r"[A-Za-z0-9._+ -]+"  # as in the manifest's schema
LICENSE_GLOBS = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")


def add_text_files(directory: Path, writer: BundleWriter) -> tuple[list[TextFile], list[str], list[str]]:
    """Copies the text files of a checkpoint. Returns (the manifest's `text`, paths of the licences, notes).

    Raises InputError for a file that is not clean."""
    text: list[TextFile] = []
    licenses: list[str] = []
    for name in JSON_FILES:
        if (directory / name).is_file():
            load_strict(directory / name)
            text.append(_copy(directory / name, f"model/{name}", writer))
    template, notes = read_chat_template(directory)
    if template is not None:
        # The template may come out of tokenizer_config.json; its own file is then the one place it is read from.
        origin = directory / CHAT_TEMPLATE
        source = origin if origin.is_file() else directory / TOKENIZER_CONFIG
        digest = writer.add(f"model/{CHAT_TEMPLATE}", template.encode("utf-8"))
        text.append({"path": f"model/{CHAT_TEMPLATE}", "source_sha256": sha256_of(source), "sha256": digest})
    for path in sorted({path for glob in LICENSE_GLOBS for path in directory.glob(glob) if path.is_file()}):
        text.append(_copy(path, f"LICENSES/{path.name}", writer))
        licenses.append(f"LICENSES/{path.name}")
    return sorted(text, key=lambda entry: entry["path"]), licenses, notes


def _copy(source: Path, path: str, writer: BundleWriter) -> TextFile:
    if not re.fullmatch(NAME, source.name):
        raise InputError("this file name can't be used in a bundle", where=str(source), remedy=f"rename it to {NAME}")
    digest = writer.add(path, load_text(source).encode("utf-8"))
    return {"path": path, "source_sha256": sha256_of(source), "sha256": digest}
