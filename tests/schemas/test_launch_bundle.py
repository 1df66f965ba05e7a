"""A bundle with a GPU target opens with its tables, and is refused for every way in which its kernels, tables, files
and memory may disagree; each with digests that are right, so that only the rules can tell."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cubins import assemble, empty_ptx
from drafts import assert_found, refusal, replace
from mutations import mutate
from qpack_schemas.bundle import Bundle, open_bundle
from qpack_schemas.errors import IntegrityError, VersionError
from qpack_schemas.launch_table import grid_of
from qpack_schemas.manifest import Kernel, Target
from qpack_schemas.memory import weight_places
from qpack_schemas.program import Kind
from qpack_schemas.strict_json import load_strict
from target_drafts import TargetDraft, add_target

TARGET = "cuda:sm_89"
PLACE = f"manifest.json#/targets/{TARGET}"
DECODE, PREFILL = "kernels/sm_89/decode.json", "kernels/sm_89/prefill.json"


@pytest.fixture(scope="module")
def whole(tiny_bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> TargetDraft:
    folder = tmp_path_factory.mktemp("target")
    return add_target(tiny_bundle("tiny-qwen3"), folder / "bundle", folder, TARGET)


def test_a_bundle_with_a_target_opens_with_its_tables(whole: TargetDraft, tmp_path: Path):
    for digests in (True, False):
        bundle = open_bundle(whole.source, digests=digests)
        assert {name: sorted(tables) for name, tables in bundle.tables.items()} == {TARGET: ["decode", "prefill"]}
        assert bundle.tables[TARGET]["decode"].to_json() == whole.tables["decode"]
    assert open_bundle(whole.write(tmp_path / "again")).bundle_id == bundle.bundle_id


def test_a_bundle_without_targets_has_no_tables(tiny_bundle: Callable[[str], Path]):
    assert open_bundle(tiny_bundle("tiny-qwen3")).tables == {}


def test_a_bundle_with_ptx_opens(tiny_bundle: Callable[[str], Path], tmp_path: Path):
    draft = add_target(tiny_bundle("tiny-qwen3"), tmp_path / "bundle", tmp_path, "cuda:ptx_120")
    open_bundle(draft.source)
    draft.entry_of_target["kernels"][first(draft)]["registers"] = 32
    assert_found(
        refusal(draft.write(tmp_path / "broken")), kernel_place(draft, "registers"), "is 32; it is null for ptx"
    )


def test_a_bundle_is_checked_with_the_base_install_only(whole: TargetDraft):
    """No torch, no numpy, no Triton, and nothing of the toolkit."""
    code = (
        "import sys; from pathlib import Path; from qpack_schemas.bundle import open_bundle\n"
        f"open_bundle(Path({str(whole.source)!r}))\n"
        "print(sorted({'torch', 'numpy', 'triton', 'safetensors'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8")
    assert ran.stdout == "[]\n"


def test_the_types_name_the_keys_of_the_schema():
    schema = load_strict(Path(sys.modules[Bundle.__module__].__file__ or "").parent / "manifest.v1.schema.json")
    for name, kind in (("target", Target), ("kernel", Kernel)):
        assert set(schema["$defs"][name]["properties"]) == set(get_type_hints(kind))
        assert schema["$defs"][name]["required"] == sorted(get_type_hints(kind))


def first(draft: TargetDraft) -> str:
    return draft.tables["decode"]["launches"][0]["kernel"]


def kernel_place(draft: TargetDraft, key: str) -> str:
    return f"manifest.json#/targets/{draft.target}/kernels/{first(draft)}/{key}"


def in_target(key: str, value: Any, where: str = "") -> Callable[[TargetDraft], str]:
    """The finding is in the first kernel's file if `where` says so."""

    def change(draft: TargetDraft) -> str:
        draft.entry_of_target[key] = value
        return f"kernels/sm_89/{first(draft)}.cubin" if where == "file" else f"{PLACE}/{key}"

    return change


def in_kernel(key: str, value: Any, where: str = "") -> Callable[[TargetDraft], str]:
    """Of the first kernel; the finding is in its file, or further down, if `where` says so."""

    def change(draft: TargetDraft) -> str:
        kernel = draft.entry_of_target["kernels"][first(draft)]
        kernel[key] = value
        return f"kernels/sm_89/{first(draft)}.cubin" if where == "file" else kernel_place(draft, key) + where

    return change


def in_table(kind: Kind, key: str, value: Any, where: str = "") -> Callable[[TargetDraft], str]:
    def change(draft: TargetDraft) -> str:
        draft.tables[kind][key] = value
        return f"kernels/sm_89/{kind}.json{where or f'#/{key}'}"

    return change


def more_work(draft: TargetDraft) -> str:
    """A buffer further out: the arena would be too small."""
    work = draft.tables["decode"]["work"]
    work["h"]["offset"] = 1 << 20
    return f"{PLACE}/work_bytes"


def less_memory(draft: TargetDraft) -> str:
    draft.entry_of_target["minimum_device_bytes"] -= 256
    return f"{PLACE}/minimum_device_bytes"


def unlisted_bucket(draft: TargetDraft) -> str:
    draft.entry_of_target["work_bytes"].popitem()
    return f"{PLACE}/work_bytes"


def unused_kernel(draft: TargetDraft) -> str:
    """The kernel of a launch that goes; its instruction is then left out as well."""
    launches = draft.tables["prefill"]["launches"]
    index = next(i for i, launch in enumerate(launches) if launch["kernel"].startswith("take_rows"))
    kernel = launches[index]["kernel"]
    launches[index]["kernel"] = launches[0]["kernel"]
    return f"{PLACE}/kernels/{kernel}"


def other_target(draft: TargetDraft) -> str:
    """The files of another target than the manifest has."""
    draft.manifest["targets"]["cuda:sm_80"] = draft.manifest["targets"].pop(TARGET)
    return "manifest.json#/files"


def no_target(draft: TargetDraft) -> str:
    del draft.manifest["targets"][TARGET]
    return DECODE


def one_kernel_less(draft: TargetDraft) -> str:
    del draft.entry_of_target["kernels"][first(draft)]
    return f"{DECODE}#/launches/0/kernel"


def two_entries(draft: TargetDraft) -> str:
    """Two names for one file."""
    kernels = draft.entry_of_target["kernels"]
    kernels["other"] = kernels[first(draft)]
    return f"{PLACE}/kernels/other/file"


BROKEN: dict[str, tuple[Callable[[TargetDraft], str], str]] = {
    "another architecture": (in_target("architecture", "sm_86"), "the target's name says 89"),
    "not an architecture": (in_target("architecture", "sm_89f"), "does not match"),
    "the format of another name": (in_target("format", "ptx"), "the target's name says 'cubin'"),
    "a cubin for newer GPUs": (in_target("scope", "newer"), "it is 'newer' for ptx and only for ptx"),
    "an unknown scope": (in_target("scope", "all"), "is not one of"),
    "no toolkit": (in_target("toolkit", None), "is not of type 'integer'"),
    "less shared memory than a kernel needs": (in_kernel("shared_bytes", 256), "more than the target's max_shared"),
    "kernels that are no map": (in_target("kernels", []), "is not of type 'object'"),
    "a kernel too few": (one_kernel_less, "is not among the target's kernels"),
    "a file elsewhere": (in_kernel("file", "model/config.json"), "the kernel's name says"),
    "a file that is not listed": (in_kernel("file", "kernels/sm_89/none.cubin"), "the kernel's name says"),
    "another digest": (in_kernel("sha256", "0" * 64), "among files"),
    "another block": (in_kernel("block", 64, "file"), "is compiled for a block of (128, 1, 1), the manifest says (64"),
    "a block that is no warp": (in_kernel("block", 100), "100 is not a multiple of 32"),
    "a block too large": (in_kernel("block", 2048), "2048 is greater than the maximum"),
    "other registers": (in_kernel("registers", 255, "file"), "registers, the manifest says 255"),
    "unknown registers": (in_kernel("registers", None), "is None; it is null for ptx and only for ptx"),
    "spills": (in_kernel("spills", 4, "file"), "has 0 bytes of stack, the manifest says 4 of spills"),
    "fewer arguments": (in_kernel("params", [["x", "*i32"]], "file"), "takes arguments at"),
    "an unknown type": (in_kernel("params", [["x", "*u8"]], "/0/1"), "'*u8' is not one of"),
    "two names for one file": (two_entries, "the kernel's name says 'kernels/sm_89/other.cubin'"),
    "an older driver": (in_target("min_driver", 11080, "file"), "needs a driver for 12000"),
    "a table of the other kind": (in_table("decode", "kind", "prefill"), "the file is for 'decode'"),
    "a table of another target": (in_table("prefill", "target", "cuda:sm_80"), f"the file is for {TARGET!r}"),
    "no launches": (in_table("decode", "launches", []), "should be non-empty"),
    "a key too many": (in_table("decode", "note", 1, "#"), "'note'"),
    "a larger work arena": (more_work, "the tables need"),
    "less memory": (less_memory, "the tables need"),
    "a bucket without work": (unlisted_bucket, "the tables need"),
    "a kernel that no table launches": (unused_kernel, "is launched by no table"),
    "tables of a target that the manifest has not": (no_target, "belongs to no target of the manifest"),
    "a target without tables": (other_target, "lists no kernels/sm_80/decode.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_disagreement_is_found_at_its_place(whole: TargetDraft, tmp_path: Path, name: str):
    change, message = BROKEN[name]
    draft = whole.copy()
    where = change(draft)
    found = refusal(draft.write(tmp_path / "bundle"))
    assert_found(found, where, message)


@pytest.mark.parametrize("image", ["garbage", "cut", "other", "architecture", "exact", "ptx"])
def test_a_kernel_file_that_is_something_else_is_refused_before_a_driver_sees_it(
    whole: TargetDraft, tmp_path: Path, image: str
):
    draft = whole.copy()
    name = first(draft)
    kernel = draft.entry_of_target["kernels"][name]
    types = [kind for _, kind in kernel["params"]]
    file, data = kernel["file"], (whole.source / kernel["file"]).read_bytes()
    data, message = {
        "garbage": lambda: (b"\x7fELF" + bytes(len(data)), "is a damaged cubin"),
        "cut": lambda: (data[:-1], "is a damaged cubin"),
        "other": lambda: (assemble(empty_ptx("other", types), tmp_path), "has the entries: other"),
        "architecture": lambda: (assemble(empty_ptx(name, types, target="sm_80"), tmp_path), "is for sm_80"),
        "exact": lambda: (assemble(empty_ptx(name, types, target="sm_90a"), tmp_path), "is for sm_90a"),
        "ptx": lambda: (empty_ptx(name, types).encode("ascii"), "is no cubin: begins with 2e 76"),
    }[image]()
    kernel["sha256"] = hashlib.sha256(data).hexdigest()
    entry = next(entry for entry in draft.manifest["files"] if entry["path"] == file)
    entry |= {"bytes": len(data), "sha256": kernel["sha256"]}
    folder = draft.write(tmp_path / "bundle")
    replace(folder / file, data)
    for digests in (True, False):
        assert_found(refusal(folder, digests=digests), file, message)


def test_a_kernel_that_is_beyond_reason_is_not_read(whole: TargetDraft, tmp_path: Path):
    draft = whole.copy()
    kernel = draft.entry_of_target["kernels"][first(draft)]
    size = (1 << 26) + 1
    next(entry for entry in draft.manifest["files"] if entry["path"] == kernel["file"])["bytes"] = size
    folder = draft.write(tmp_path / "bundle")
    (folder / kernel["file"]).unlink()
    with (folder / kernel["file"]).open("wb") as file:
        file.truncate(size)
    assert_found(refusal(folder, digests=False), kernel["file"], f"has {size} bytes; no kernel has more than")


def test_weight_files_lie_one_behind_the_other_aligned():
    """By hand: 300 bytes take 512."""
    files: Any = [
        {"path": "weights/00001.safetensors", "bytes": 256, "sha256": ""},
        {"path": "model/config.json", "bytes": 9, "sha256": ""},
        {"path": "weights/00000.safetensors", "bytes": 300, "sha256": ""},
    ]
    assert weight_places(files) == ({"weights/00000.safetensors": 0, "weights/00001.safetensors": 512}, 768)
    assert weight_places([]) == ({}, 0)


@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_whatever_is_changed_and_resealed_is_refused_or_sound(
    whole: TargetDraft, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    draft = whole.copy()
    for _ in range(data.draw(st.integers(1, 2), label="changes")):
        places = [draft.tables["decode"], draft.tables["prefill"], draft.entry_of_target]
        place = places[data.draw(st.integers(0, 2), label="document")]
        if place:
            mutate(data, place)
    folder = tmp_path_factory.mktemp("fuzz") / "bundle"
    try:
        bundle = open_bundle(draft.write(folder), digests=False)
    except (IntegrityError, VersionError) as error:
        event(f"exit {error.exit_code}")
    else:
        event("opened")
        run(bundle)
    finally:
        shutil.rmtree(folder)


def run(bundle: Bundle) -> None:
    """Every bucket as an executor would bind it, on a memory that knows who owns each byte of the work arena."""
    manifest = bundle.manifest
    for name, tables in bundle.tables.items():
        target: Any = manifest["targets"][name]
        for bucket in manifest["buckets"]:
            table, rows = tables[bucket["program"]], bucket["rows"]
            owner = dict[int, str]()  # block of 256 bytes -> the buffer that was last begun there
            begun = set[str]()
            for launch in table.launches:
                assert all(0 < size < 2**31 for size in grid_of(launch, rows, bucket["context"]))
                assert len(launch.args) == len(target["kernels"][launch.kernel]["params"])
                for argument in launch.args:
                    if isinstance(argument, str) and argument in table.work:
                        blocks = list(work_blocks(table.work[argument], rows))
                        assert blocks[-1] * 256 < target["work_bytes"][bucket["name"]]
                        if argument not in begun:
                            begun.add(argument)
                            owner |= dict.fromkeys(blocks, argument)
                        assert {owner[block] for block in blocks} == {argument}


def work_blocks(buffer: Any, rows: int) -> Iterator[int]:
    begin = rows * buffer.offset
    end = begin + rows * buffer.bytes_per_row()
    yield from range(begin // 256, -(-end // 256))
