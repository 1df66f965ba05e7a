"""The safetensors library is the oracle: what we write it reads, what it writes we read, what we refuse it refuses."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file

from qpack_schemas.errors import InputError
from qpack_schemas.tensor_file import ALIGNMENT, CODES, DTYPE_BITS, PAD_PREFIX, TensorFilePlan, plan_file, read_spans

Tensors = dict[str, np.ndarray]

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), **{name: np.dtype(name) for name in CODES if name != "bfloat16"}}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name != "__metadata__" and not name.startswith(PAD_PREFIX)
)
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)


@st.composite
def tensor_sets(draw: st.DrawFn) -> Tensors:
    tensors: Tensors = {}
    for name in draw(st.lists(NAMES, unique=True, max_size=6)):
        dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
        bytes_ = draw(arrays(np.uint8, (*draw(SHAPES), dtype.itemsize)))
        tensors[name] = bytes_.view(dtype)[..., 0]
    return tensors


def plan_of(tensors: Tensors) -> TensorFilePlan:
    return plan_file({name: (tensor.dtype.name, tensor.shape) for name, tensor in tensors.items()})


def write(path: Path, tensors: Tensors) -> Path:
    """The file as the plan lays it out, pads as zeros."""
    plan = plan_of(tensors)
    content = plan.header
    for name, span in plan.spans.items():
        assert span.begin == len(content)
        content += tensors[name].tobytes() if name in tensors else bytes(span.bytes)
    path.write_bytes(content)
    return path


def read(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    content = path.read_bytes()
    return {
        name: (span.dtype, span.shape, content[span.begin : span.begin + span.bytes])
        for name, span in read_spans(path).items()
    }


def as_read(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (CODES[t.dtype.name], t.shape, t.tobytes()) for name, t in tensors.items()}


@given(tensor_sets())
def test_the_library_loads_what_the_plan_lays_out(tmp_path_factory: pytest.TempPathFactory, tensors: Tensors):
    path = write(tmp_path_factory.mktemp("plan") / "t.safetensors", tensors)
    loaded = {name: t for name, t in load_file(path).items() if not name.startswith(PAD_PREFIX)}
    assert loaded.keys() == tensors.keys()
    for name, tensor in loaded.items():
        assert str(tensor.dtype) == f"torch.{tensors[name].dtype.name}"
        assert tuple(tensor.shape) == tensors[name].shape
        assert tensor.contiguous().flatten().untyped_storage().tolist() == list(tensors[name].tobytes())


@given(tensor_sets())
def test_what_the_plan_lays_out_is_read_back(tmp_path_factory: pytest.TempPathFactory, tensors: Tensors):
    path = write(tmp_path_factory.mktemp("plan") / "t.safetensors", tensors)
    back = read(path)
    assert {name: item for name, item in back.items() if not name.startswith(PAD_PREFIX)} == as_read(tensors)
    assert read_spans(path) == plan_of(tensors).spans


@given(tensor_sets())
def test_what_the_library_writes_is_read(tmp_path_factory: pytest.TempPathFactory, tensors: Tensors):
    path = tmp_path_factory.mktemp("library") / "t.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    assert read(path) == as_read(tensors)


@given(tensor_sets())
def test_every_tensor_of_a_plan_is_aligned_in_the_file(tensors: Tensors):
    plan = plan_of(tensors)
    assert len(plan.header) % ALIGNMENT == 0
    assert all(plan.spans[name].begin % ALIGNMENT == 0 for name in tensors)
    assert sum(span.bytes for span in plan.spans.values()) % ALIGNMENT == 0


def test_the_layout_is_this_one_and_no_other():
    plan = plan_file({"b": ("bfloat16", (3,)), "a": ("int32", (8, 8)), "ü": ("float32", ())})
    text = (
        b'{"b":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"pad.0":{"dtype":"U8","shape":[250],'
        b'"data_offsets":[6,256]},"a":{"dtype":"I32","shape":[8,8],"data_offsets":[256,512]},'
        b'"\\u00fc":{"dtype":"F32","shape":[],"data_offsets":[512,516]},"pad.2":{"dtype":"U8","shape":[252],'
        b'"data_offsets":[516,768]}}'
    )
    assert plan.header == struct.pack("<Q", 504) + text + b" " * (504 - len(text))


@pytest.mark.parametrize("code", sorted(DTYPE_BITS))
def test_every_dtype_of_the_library_has_its_size(tmp_path: Path, code: str):
    path = damaged(tmp_path, entry(code, [8], 0, DTYPE_BITS[code]), data=bytes(DTYPE_BITS[code]))
    assert path in accepted_by_library(path)
    assert read_spans(path)["t"].shape == (8,)


# Damage. `damaged` writes a file from any header; the library must refuse what we refuse.


def entry(dtype: object = "F32", shape: object = (2,), begin: object = 0, end: object = 8) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def damaged(directory: Path, *entries: object, data: bytes = bytes(8)) -> Path:
    header = json.dumps({"tuvw"[i]: value for i, value in enumerate(entries)}).encode()
    path = directory / "t.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def accepted_by_library(*paths: Path) -> list[Path]:
    accepted: list[Path] = []
    for path in paths:
        try:
            with safe_open(path, framework="np"):
                accepted.append(path)
        except SafetensorError:
            pass
    return accepted


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_spans(path)
    assert not accepted_by_library(path), "the library reads it"
    assert caught.value.where == str(path)
    return str(caught.value)


@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_named_truncated_with_both_sizes(tmp_path_factory: pytest.TempPathFactory, keep: float):
    """ComfyUI#15602."""
    path = write(tmp_path_factory.mktemp("cut") / "t.safetensors", {"a": np.ones((9, 9), np.float32)})
    content = path.read_bytes()
    left = int(len(content) * keep)
    path.write_bytes(content[:left])
    message = refusal(path)
    assert "truncated" in message
    assert f"the file has {left})" in message
    known = (8, ALIGNMENT, len(content))  # the length of the header, the header, the tensors
    expected = next(size for size in known if left < size)
    assert f"asks for {expected} bytes" in message


@given(extra=st.binary(min_size=1, max_size=20))
def test_trailing_bytes_are_named_with_both_sizes(tmp_path_factory: pytest.TempPathFactory, extra: bytes):
    """ComfyUI#15602."""
    path = damaged(tmp_path_factory.mktemp("more"), entry(), data=bytes(8) + extra)
    message = refusal(path)
    assert f"{len(extra)} trailing bytes" in message
    size = path.stat().st_size
    assert f"asks for {size - len(extra)} bytes, the file has {size})" in message


def test_a_git_lfs_pointer_is_named_with_the_remedy(tmp_path: Path):
    """vllm#57975."""
    path = tmp_path / "model.safetensors"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 988097824\n", encoding="utf-8"
    )
    assert "git lfs pull" in refusal(path)


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html>not found</html>", b"PK\x03\x04" + bytes(4096)])
def test_another_format_is_no_safetensors_file(tmp_path: Path, content: bytes):
    path = tmp_path / "t.safetensors"
    path.write_bytes(content)
    assert "safetensors" in refusal(path)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([entry(end=4), entry(begin=4, end=8)], "'t': F32 [2] takes 8 bytes, its offsets span 4"),
        ([entry(shape=[1], end=4), entry(shape=[1], begin=3, end=7)], "'u' begins at byte"),
        ([entry(shape=[1], begin=0, end=4), entry(shape=[0], begin=5, end=5)], "'u' begins at byte"),
        ([entry(shape=[1])], "'t': F32 [1] takes 4 bytes, its offsets span 8"),
        ([entry(begin=8, end=0)], "'t': F32 [2] takes 8 bytes, its offsets span -8"),
        ([entry(dtype="F33")], "'t' has the unknown dtype 'F33'"),
        ([entry(dtype="F4", shape=[17])], "'t': F4 [17] takes 8.5 bytes, its offsets span 8"),
        ([entry(shape=[-2])], "'t' is malformed"),
        ([entry(shape=[2.0])], "'t' is malformed"),
        ([entry(shape=[True, 2])], "'t' is malformed"),
        ([entry(shape="2")], "'t' is malformed"),
        ([entry(begin="0")], "'t' is malformed"),
        ([{"dtype": "F32", "shape": [2]}], "'t' is malformed"),
        ([entry(dtype=["F32"])], "'t' is malformed"),
        ([7], "'t' is malformed"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused_naming_the_tensor(
    tmp_path: Path, entries: list[object], expected: str
):
    assert expected in refusal(damaged(tmp_path, *entries))


@pytest.mark.parametrize("header", [b"[]", b"{\xff}", b'{"t":', b"  "])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, header: bytes):
    path = tmp_path / "t.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    refusal(path)


def test_a_tensor_named_twice_is_refused(tmp_path: Path):
    """JSON readers keep the last of two equal keys, so that one of the tensors would be lost in silence."""
    path = damaged(tmp_path, entry(shape=[1], end=4), entry(shape=[1], begin=4))
    path.write_bytes(path.read_bytes().replace(b'"u"', b'"t"'))
    with pytest.raises(InputError, match="'t' stands twice"):
        read_spans(path)
