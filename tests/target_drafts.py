"""A bundle with a GPU target made by hand: one launch per instruction, kernels that do nothing, real cubins."""

import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cubins import assemble, empty_ptx
from drafts import MANIFEST, Draft, replace
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.cubin import read_cubin
from qpack_schemas.launch_rules import TRITON_TYPES
from qpack_schemas.launch_table import Launch, LaunchTable, Scalar, TargetBuffer, kernel_folder, table_path
from qpack_schemas.manifest import seal
from qpack_schemas.memory import account_target
from qpack_schemas.program import KINDS, Kind, Program
from qpack_schemas.strict_json import dump_compact, load_strict


@dataclass
class TargetDraft(Draft):
    """A draft of a bundle with the target `target`, whose launch tables are JSON to be changed as well."""

    target: str = ""
    tables: dict[Kind, dict[str, Any]] = field(default_factory=dict)  # by kind

    @classmethod
    def read_target(cls, source: Path, target: str) -> "TargetDraft":
        draft = Draft.read(source)
        tables: dict[Kind, dict[str, Any]] = {kind: load_strict(source / table_path(target, kind)) for kind in KINDS}
        return cls(source, draft.manifest, draft.programs, target, tables)

    @property
    def entry_of_target(self) -> dict[str, Any]:
        return self.manifest["targets"][self.target]

    def copy(self) -> "TargetDraft":
        return copy.deepcopy(self)

    def write(self, folder: Path, *, resealed: bool = True, **programs: bytes) -> Path:
        data = {table_path(self.target, kind): dump_compact(table) for kind, table in self.tables.items()}
        if resealed and isinstance(self.manifest.get("files"), list):
            _relist(self.manifest["files"], data)
        super().write(folder, resealed=resealed, **programs)
        for path, content in data.items():
            replace(folder / path, content)
        return folder


def add_target(source: Path, folder: Path, tmp: Path, target: str = "cuda:sm_89") -> TargetDraft:
    """The bundle at `source` with `target`, written to `folder`."""
    draft = Draft.read(source)
    shared = shared_buffers(draft.manifest)  # type: ignore[arg-type]
    files: dict[str, bytes] = {}
    kernels: dict[str, Any] = {}
    tables: dict[Kind, LaunchTable] = {}
    for kind in KINDS:
        program = Program.from_json(draft.programs[kind])
        dtypes = {name: buffer.dtype for name, buffer in {**shared, **program.buffers}.items()}
        work = {n: TargetBuffer(b.dtype, b.shape, b.offset) for n, b in program.buffers.items() if b.arena == "work"}
        launches: list[Launch] = []
        for index, instruction in enumerate(program.code):
            names = list(dict.fromkeys(name for _, name in instruction.operands()))
            types = [*(TRITON_TYPES[dtypes[name]] for name in names), "i32"]
            name = f"{instruction.op}_{hashlib.sha256(str(types).encode()).hexdigest()[:8]}"
            if name not in kernels:
                kernels[name] = _kernel(name, types, f"{kernel_folder(target)}/{name}", target, files, tmp)
            after = (index - 1,) if index else ()
            launches.append(Launch(name, (index, index), ("R", 1, 1), (*names, Scalar("R")), after))
        tables[kind] = LaunchTable(kind, target, work, tuple(launches))
    manifest = draft.manifest
    for kind in KINDS:
        files[table_path(target, kind)] = dump_compact(tables[kind].to_json())
    manifest["files"] += [{"path": path} for path in files]
    _relist(manifest["files"], files)
    manifest["files"].sort(key=lambda entry: entry["path"])
    work_bytes, least = account_target(manifest["files"], manifest["memory"], tables, manifest["buckets"])
    ptx = target.startswith("cuda:ptx")
    manifest["targets"][target] = {
        "architecture": f"sm_{target.rpartition('_')[2]}", "scope": "newer" if ptx else "major",
        "format": "ptx" if ptx else "cubin", "toolkit": 129, "min_driver": 12090 if ptx else 12000,
        "max_shared_bytes": 0, "work_bytes": work_bytes, "minimum_device_bytes": least,
        "compilers": {"ptxas": "12.9"}, "kernels": kernels,
    }  # fmt: skip
    draft.write(folder)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    replace(folder / MANIFEST, seal(load_strict(folder / MANIFEST)))
    return TargetDraft.read_target(folder, target)


def _kernel(name: str, types: list[str], path: str, target: str, files: dict[str, bytes], tmp: Path) -> dict[str, Any]:
    form, sm = ("ptx" if "ptx" in target else "cubin"), f"sm_{target.rpartition('_')[2]}"
    text = empty_ptx(name, types, target=sm)
    image = text.encode("ascii") if form == "ptx" else assemble(text, tmp)
    files[f"{path}.{form}"] = image
    return {
        "file": f"{path}.{form}", "sha256": hashlib.sha256(image).hexdigest(), "function": "tests.empty",
        "block": 128, "shared_bytes": 0, "spills": None if form == "ptx" else 0, "constants": {"SIZE": 1, "bias": None},
        "registers": None if form == "ptx" else read_cubin(image, path).entries[name].registers,
        "params": [[f"x{index}", kind] for index, kind in enumerate(types)],
    }  # fmt: skip


def _relist(listed: list[Any], files: dict[str, bytes]) -> None:
    """Bytes and digests of `files` into the manifest's list."""
    for entry in listed:
        if isinstance(entry, dict) and isinstance(path := entry.get("path"), str) and path in files:
            entry |= {"bytes": len(files[path]), "sha256": hashlib.sha256(files[path]).hexdigest()}
