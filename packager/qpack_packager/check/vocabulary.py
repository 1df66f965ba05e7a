"""The tokens that belong to a merges.txt: whether its carriage returns are line ends depends on them."""

import json
from collections.abc import Collection
from pathlib import Path

from qpack_packager.textfix.fix import MAX_BYTES, fix

BESIDE = ("vocab.json", "tokenizer.json")


def vocabulary_beside(path: Path) -> Collection[str]:
    """The keys of the vocabulary in the directory of `path`; none if there is none that can be read, which is that
    file's own finding."""
    for name in BESIDE:
        try:
            data = path.with_name(name).read_bytes()
        except OSError:
            continue
        clean = fix(name, data).data if len(data) <= MAX_BYTES else None
        document = json.loads(clean) if clean is not None else None
        if isinstance(document, dict):
            model = document.get("model")
            vocabulary = model.get("vocab") if isinstance(model, dict) else document
            if isinstance(vocabulary, dict):
                return vocabulary
    return ()
