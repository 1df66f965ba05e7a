"""Which kind of text file a name is. The kind decides what is canonical and what is checked."""

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path, PurePosixPath


class Kind(Enum):
    CONFIG = "configuration in JSON"
    TOKENIZER = "tokenizer in JSON"
    VOCABULARY = "one token or merge a line"
    TEMPLATE = "Jinja template"
    YAML = "YAML"
    MARKDOWN = "Markdown"
    LICENSE = "licence or notice"
    TEXT = "other text"
    NEVER = "never text, or never shipped"


_NAMES = {
    "tokenizer.json": Kind.TOKENIZER,
    "vocab.json": Kind.TOKENIZER,
    "merges.txt": Kind.VOCABULARY,
    "vocab.txt": Kind.VOCABULARY,
}
_SUFFIXES = {
    ".json": Kind.CONFIG,
    ".jinja": Kind.TEMPLATE,
    ".jinja2": Kind.TEMPLATE,
    ".j2": Kind.TEMPLATE,
    ".yaml": Kind.YAML,
    ".yml": Kind.YAML,
    ".md": Kind.MARKDOWN,
    ".markdown": Kind.MARKDOWN,
    ".txt": Kind.TEXT,
    ".jsonl": Kind.TEXT,
    ".cff": Kind.YAML,
}
_STEMS = {
    "license": Kind.LICENSE,
    "licence": Kind.LICENSE,
    "notice": Kind.LICENSE,
    "copying": Kind.LICENSE,
    "readme": Kind.MARKDOWN,
}
# Weights and arrays, archives, images and sound, documents, code: *.py is never shipped.
_NEVER = (
    {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".onnx", ".h5", ".msgpack", ".npy", ".npz"}
    | {".pkl", ".pickle", ".parquet", ".arrow", ".model", ".tiktoken"}
    | {".zip", ".gz", ".tgz", ".tar", ".xz", ".zst", ".bz2", ".7z"}
    | {".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico", ".mp3", ".mp4", ".wav", ".pdf", ".docx"}
    | {".py", ".pyc", ".so", ".dll", ".exe", ".cubin", ".cu", ".c", ".cpp", ".h", ".sh", ".ipynb"}
)


def kind_of(name: str) -> Kind:
    """The kind of a file by its name; directories before it do not count. A name that says nothing is TEXT."""
    base = PurePosixPath(name.replace("\\", "/")).name.lower()
    suffix = PurePosixPath(base).suffix
    if suffix in _NEVER:
        return Kind.NEVER
    if suffix in {"", ".txt", ".md"} and (kind := _STEMS.get(_stem(base))):
        return kind
    return _NAMES.get(base) or _SUFFIXES.get(suffix, Kind.TEXT)


def _stem(base: str) -> str:
    """The first word: LICENSE-MIT.txt, NOTICE_THIRD_PARTY and README.zh are of the kind of their first word."""
    return base.replace("-", ".").replace("_", ".").partition(".")[0]


def text_files(directory: Path) -> Iterator[Path]:
    """The files below a directory that are looked at, in sorted order: those whose name says that they are text.
    Hidden files and directories are passed over, and so are symbolic links to directories."""
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and _says_text(name):
                yield Path(folder, name)


def _says_text(name: str) -> bool:
    base = name.lower()
    return kind_of(name) is not Kind.NEVER and (PurePosixPath(base).suffix in _SUFFIXES or _stem(base) in _STEMS)
