"""A bundle taken apart into JSON, to be changed and put together again, resealed so that only the rules can tell."""

import copy
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qpack_schemas.bundle import open_bundle
from qpack_schemas.bundle_rules import PROGRAM_PATHS
from qpack_schemas.errors import BundleError, Finding, IntegrityError
from qpack_schemas.manifest import seal
from qpack_schemas.program import Kind
from qpack_schemas.strict_json import dump_canonical, dump_compact, load_strict

MANIFEST = "manifest.json"


@dataclass
class Draft:
    """The JSON of the bundle at `source`. The methods that change it return the place where a finding is expected."""

    source: Path
    manifest: dict[str, Any]
    programs: dict[str, dict[str, Any]]  # by kind

    @classmethod
    def read(cls, source: Path) -> "Draft":
        programs = {kind: load_strict(source / file) for kind, file in PROGRAM_PATHS.items()}
        return cls(source, load_strict(source / MANIFEST), programs)

    def copy(self) -> "Draft":
        return Draft(self.source, copy.deepcopy(self.manifest), copy.deepcopy(self.programs))

    def write(self, folder: Path, *, resealed: bool = True, **programs: bytes) -> Path:
        """The bundle as it is now, or with other bytes for a program. Without `resealed` all digests are stale."""
        shutil.copytree(self.source, folder, copy_function=os.link)
        manifest = copy.deepcopy(self.manifest)
        listed = manifest.get("files") if resealed else None
        for kind, file in PROGRAM_PATHS.items():
            data = programs.get(kind) or dump_compact(self.programs[kind])
            replace(folder / file, data)
            for entry in listed if isinstance(listed, list) else []:
                if isinstance(entry, dict) and entry.get("path") == file:
                    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        replace(folder / MANIFEST, seal(manifest) if resealed else dump_canonical(manifest))
        return folder

    def find(self, op: str, kind: Kind = "decode") -> tuple[str, dict[str, Any]]:
        """The first instruction `op` of a program, and its place."""
        for index, instruction in enumerate(self.programs[kind]["code"]):
            if instruction["op"] == op:
                return f"{PROGRAM_PATHS[kind]}#/code/{index}", instruction
        raise LookupError(op)

    def edit(self, op: str, part: str, name: str, value: Any, kind: Kind = "decode") -> str:
        """Sets, or with None removes, an operand or attribute of the first instruction `op`."""
        place, instruction = self.find(op, kind)
        entries = instruction.setdefault(part, {})
        if value is None:
            del entries[name]
        else:
            entries[name] = value
        return place

    def entry(self, name: str, kind: Kind = "decode") -> tuple[str, dict[str, Any]]:
        """A buffer or tensor, wherever it is declared, and its place."""
        if name in self.programs[kind]["buffers"]:
            return f"{PROGRAM_PATHS[kind]}#/buffers/{name}", self.programs[kind]["buffers"][name]
        part = "buffers" if name in self.manifest["buffers"] else "tensors"
        return f"{MANIFEST}#/{part}/{name}", self.manifest[part][name]

    def set(self, name: str, key: str, value: Any, kind: Kind = "decode") -> str:
        place, entry = self.entry(name, kind)
        entry[key] = value
        return place


Change = Callable[[Draft], str]


def replace(file: Path, data: bytes) -> None:
    """Writes a new file, because a copied bundle shares its files with the source."""
    file.unlink(missing_ok=True)
    file.write_bytes(data)


def refusal(bundle: Path, error: type[BundleError] = IntegrityError, **options: bool) -> list[Finding]:
    """The findings for which the bundle is refused."""
    with pytest.raises(error) as caught:
        open_bundle(bundle, **options)
    assert type(caught.value) is error
    assert caught.value.where == str(bundle)
    assert caught.value.findings
    return caught.value.findings


def assert_found(findings: list[Finding], where: str, message: str) -> None:
    assert any(f.where == where and message in f.message for f in findings), "\n".join(map(str, findings))
