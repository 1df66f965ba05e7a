"""Do this host's tokenizer and Jinja do what they did at build? Asked at every boot, before the first prompt."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from qpack_runtime.chat import render
from qpack_schemas.errors import Finding, IntegrityError, UsageError
from qpack_schemas.manifest import Manifest


def check_probes(path: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Raises IntegrityError naming every probe text and chat that gives something else than at build."""
    findings = [*_texts(manifest, tokenizer), *_chats(path, manifest)]
    if findings:
        raise IntegrityError(
            "the tokenizer or the chat template works differently here than at build:",
            findings,
            where=str(path),
            remedy="install the versions of tokenizers and jinja2 that qpack asks for",
        )


def _texts(manifest: Manifest, tokenizer: Tokenizer) -> Iterator[Finding]:
    for index, probe in enumerate(manifest["probes"]["texts"]):
        if (ids := tokenizer.encode(probe["text"]).ids) != probe["ids"]:
            yield Finding(f"manifest.json#/probes/texts/{index}", f"{probe['text']!r} is {ids}, was {probe['ids']}")


def _chats(path: Path, manifest: Manifest) -> Iterator[Finding]:
    for index, probe in enumerate(manifest["probes"]["chats"]):
        try:
            prompt = render(path, [dict(message) for message in probe["messages"]], now=lambda form: form)
            digest = hashlib.sha256(prompt.encode("utf-8")).hexdigest()
        except UsageError:
            digest = None
        if digest != probe["sha256"]:
            yield Finding(f"manifest.json#/probes/chats/{index}", f"renders to {digest}, was {probe['sha256']}")
