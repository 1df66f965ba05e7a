"""The text files of a bundle: model/*.json, the chat template and the licences, clean, canonical and recorded."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from qpack_packager.checkpoint.checkpoint import CONFIG
from qpack_packager.checkpoint.declared_license import declared_license
from qpack_packager.checkpoint.model_text import CleanText, ModelText
from qpack_packager.checkpoint.tokenizer_facts import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_chat_template,
)
from qpack_packager.probes import chat_probes, same_ids, text_probes
from qpack_schemas.errors import InputError
from qpack_schemas.manifest import Probes, TextFile

JSON_FILES = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG)
NAME = r"[A-Za-z0-9._+ -]+"  # as in the manifest's schema
LICENSE_GLOBS = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")


@dataclass(frozen=True)
class TextPart:
    """The files, path -> bytes, and what the manifest says about them."""

    contents: Mapping[str, bytes]
    files: list[TextFile]
    license: str | None  # as the checkpoint declares it
    licenses: list[str]  # the files
    notes: list[str]
    probes: Probes


def make_text_files(text: ModelText) -> TextPart:
    """Raises InputError for a file of the checkpoint that can't be made clean without a guess."""
    made = {f"model/{name}": text.clean(name) for name in JSON_FILES if name in text}
    template, notes = read_chat_template(text)
    if template is not None:
        # Without a file of its own it comes out of tokenizer_config.json; in the bundle it always has one.
        origin = text.clean(CHAT_TEMPLATE if CHAT_TEMPLATE in text else TOKENIZER_CONFIG)
        made[f"model/{CHAT_TEMPLATE}"] = CleanText(template.encode("utf-8"), origin.facts, origin.source_sha256, ())
    licenses: list[str] = []
    names = {path.name for glob in LICENSE_GLOBS for path in text.directory.glob(glob) if path.is_file()}
    for name in sorted(names):
        if not re.fullmatch(NAME, name):
            where = str(text.directory / name)
            raise InputError("this file name can't be used in a bundle", where=where, remedy=f"rename it to {NAME}")
        made[f"LICENSES/{name}"] = text.clean(name)
        licenses.append(f"LICENSES/{name}")
    read = [name for name in (*JSON_FILES, CHAT_TEMPLATE, *sorted(names)) if name in text]
    warnings = [warning for name in read for warning in text.clean(name).warnings]
    contents, files = (
        {path: clean.data for path, clean in made.items()},
        [_entry(path, made[path]) for path in sorted(made)],
    )
    return TextPart(contents, files, declared_license(text), licenses, [*warnings, *notes], _probes(text, template))


def _entry(path: str, clean: CleanText) -> TextFile:
    facts = clean.facts
    return {
        "path": path,
        "source_sha256": clean.source_sha256,
        "encoding": facts.encoding if facts else None,
        "known_by": facts.known_by if facts else None,
        "bom": facts.bom if facts else False,
        "newlines": facts.newlines if facts else None,
        "sha256": hashlib.sha256(clean.data).hexdigest(),
    }


def _probes(text: ModelText, template: str | None) -> Probes:
    """Recorded for the boot. The clean tokenizer must give the ids of the source, if the library reads that at all, and
    the clean template must render the probe chats as the source does."""
    path = text.directory / TOKENIZER
    try:
        texts = text_probes(text.text(TOKENIZER))
    except ValueError as error:
        raise InputError(f"the tokenizers library does not read it: {error}", where=str(path)) from None
    clean = text.clean(TOKENIZER)
    if clean.source_sha256 != hashlib.sha256(clean.data).hexdigest() and not same_ids(path, texts):
        raise InputError("its canonical form gives other ids than the file itself", where=str(path))
    chats = chat_probes(template) if template is not None else []
    found = text.as_found(CHAT_TEMPLATE) if CHAT_TEMPLATE in text else None
    if found is not None and chat_probes(found) != chats:
        path = text.directory / CHAT_TEMPLATE
        raise InputError("its canonical form renders other prompts than the file itself", where=str(path))
    return {"texts": texts, "chats": chats}
