import shutil
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import (
    FIRST_SHARD,
    INDEX,
    SECOND_SHARD,
    TINY_QWEN3,
    TINY_QWEN3_5,
    Tensors,
    numbers,
    published_form,
    random_checkpoint,
    read_config,
    read_tensors,
    write_checkpoint,
    write_json,
)
from qpack_packager.checkpoint.checkpoint import Checkpoint
from qpack_packager.checkpoint.model_text import ModelText
from qpack_packager.checkpoint.source_tensor import SourceTensor
from qpack_schemas.errors import InputError, QpackError, UnsupportedError

CONFIG = read_config(TINY_QWEN3)
DTYPES = [np.dtype(ml_dtypes.bfloat16), np.dtype("float16"), np.dtype("float32"), np.dtype("float64")]


def refusal(directory: Path, kind: type[QpackError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        Checkpoint.open(ModelText(directory))
    assert caught.value.where
    return str(caught.value)


def assert_holds(checkpoint: Checkpoint, tensors: Tensors) -> None:
    """Exactly these tensors: names, dtypes, shapes and bits."""
    assert checkpoint.tensors.keys() == tensors.keys()
    for name, expected in tensors.items():
        loaded = whole(checkpoint, name)
        assert (loaded.dtype, loaded.shape) == (expected.dtype, expected.shape)
        assert loaded.tobytes() == expected.tobytes()
        assert (checkpoint.tensors[name].dtype, checkpoint.tensors[name].shape) == (expected.dtype.name, expected.shape)


# What is there is read.


def whole(checkpoint: Checkpoint, name: str) -> np.ndarray:
    tensor = checkpoint.tensors[name]
    assert isinstance(tensor, SourceTensor)
    if tensor.shape:
        assert np.array_equal(tensor.lines(0, tensor.shape[0]).view(np.uint8), tensor.read().view(np.uint8))
    return tensor.read()


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_tensor_that_transformers_saves_is_read_bit_by_bit(tmp_path: Path, family: str, dtype: str):
    directory = random_checkpoint(tmp_path, family, tied=False, dtype=dtype)
    assert_holds(Checkpoint.open(ModelText(directory)), read_tensors(directory))


@given(st.data())
def test_sharding_changes_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    names = data.draw(st.lists(st.text("ab.", min_size=1, max_size=6), unique=True, min_size=1, max_size=6))
    shapes = st.lists(st.integers(0, 5), max_size=3)
    tensors = {name: np.ones(data.draw(shapes), data.draw(st.sampled_from(DTYPES))) for name in names}
    directory = tmp_path_factory.mktemp("sharded")
    write_checkpoint(directory, CONFIG, tensors, shards=data.draw(st.integers(1, len(names))))
    checkpoint = Checkpoint.open(ModelText(directory))
    assert_holds(checkpoint, tensors)
    assert list(checkpoint.tensors) == sorted(tensors)


def test_every_file_that_was_read_is_listed(single: Path, sharded: Path):
    assert Checkpoint.open(ModelText(single)).files == ("config.json", "model.safetensors")
    assert Checkpoint.open(ModelText(sharded)).files == ("config.json", FIRST_SHARD, SECOND_SHARD, INDEX)


def test_the_only_weight_file_may_have_any_name(single: Path):
    (single / "model.safetensors").rename(single / "weights.safetensors")
    assert_holds(Checkpoint.open(ModelText(single)), numbers("a", "b"))


def test_shards_may_be_links_out_of_the_directory_as_in_a_download_cache(sharded: Path, tmp_path: Path):
    for shard in (FIRST_SHARD, SECOND_SHARD):
        (sharded / shard).rename(tmp_path / shard)
        (sharded / shard).symlink_to(tmp_path / shard)
    assert_holds(Checkpoint.open(ModelText(sharded)), numbers("a", "b", "c", "d"))


def mapped_bytes(path: Path) -> list[int]:
    """Of each mapping of `path` into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    return [int(end, 16) - int(begin, 16) for begin, end in ranges]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of mappings")
def test_only_the_lines_asked_for_come_into_memory(tmp_path: Path):
    """TensorRT-Edge-LLM#30: memory is bounded by what is worked on. A mapped file would count as the process's own."""
    tensors = {name: np.arange(i, i + (1 << 20), dtype=np.float32).reshape(1024, 1024) for i, name in enumerate("abc")}
    checkpoint = Checkpoint.open(ModelText(write_checkpoint(tmp_path, CONFIG, tensors)))
    tracemalloc.start()
    lines = checkpoint.lines("b", 1000, 1024)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(lines, tensors["b"][1000:])
    assert lines.nbytes <= most < lines.nbytes + 65536
    assert mapped_bytes(tmp_path / "model.safetensors") == []


def test_a_weight_file_that_shrinks_during_a_build_is_named(tmp_path: Path):
    checkpoint = Checkpoint.open(ModelText(write_checkpoint(tmp_path, CONFIG, {"a": np.zeros((8, 4), np.float32)})))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    assert len(checkpoint.lines("a", 0, 5)) == 5
    with pytest.raises(InputError, match=r"model\.safetensors: changed while it was read: 40 bytes of tensor 'a'"):
        checkpoint.lines("a", 0, 8)


# Names.


def test_the_published_and_the_text_only_form_hold_the_same_tensors(tmp_path: Path):
    """vllm#50355: both prefixes load."""
    text = Checkpoint.open(ModelText(TINY_QWEN3_5))
    published = Checkpoint.open(ModelText(published_form(TINY_QWEN3_5, tmp_path)))
    language = {name for name in published.tensors if not name.startswith(("model.visual.", "mtp."))}
    assert language == text.tensors.keys()
    assert {name.split(".")[0] for name in published.tensors.keys() - language} == {"model", "mtp"}
    for name in language:
        assert np.array_equal(whole(published, name).astype(np.float32), whole(text, name).astype(np.float32))
        assert published.tensors[name].source_name == name.replace("model.", "model.language_model.", 1)


def test_one_tensor_under_both_prefixes_is_an_error_naming_both(tmp_path: Path):
    both = ("model.norm.weight", "model.language_model.norm.weight")
    message = refusal(write_checkpoint(tmp_path, CONFIG, numbers(*both), shards=2))
    assert all(repr(name) in message for name in both)


def test_names_that_only_resemble_the_prefix_stay_as_they_are(tmp_path: Path):
    tensors = numbers("language_model.x", "model.language_models.x", "lm_head.weight", "x.model.language_model.y")
    assert_holds(Checkpoint.open(ModelText(write_checkpoint(tmp_path, CONFIG, tensors))), tensors)


def test_what_is_odd_about_the_files_is_noted(sharded: Path):
    """mlx-vlm#1464."""
    shutil.copyfile(sharded / FIRST_SHARD, sharded / "model.safetensors")
    checkpoint = Checkpoint.open(ModelText(sharded))
    assert_holds(checkpoint, numbers("a", "b", "c", "d"))
    assert [note.split()[0] for note in checkpoint.notes] == ["model.safetensors"]
    assert "model.safetensors" not in checkpoint.files


# Damaged files. tests/schemas/test_tensor_file.py and test_strict_json.py try more of them.


@pytest.mark.parametrize("file", ["config.json", INDEX, FIRST_SHARD])
def test_a_git_lfs_pointer_is_named_with_the_remedy(sharded: Path, file: str):
    """vllm#57975."""
    (sharded / file).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 988097824\n", encoding="utf-8"
    )
    message = refusal(sharded)
    assert str(sharded / file) in message
    assert "git lfs pull" in message


@pytest.mark.parametrize(("change", "kind"), [(-1, "truncated: 1 bytes"), (3, "3 trailing bytes")])
def test_a_shard_of_the_wrong_size_is_named_with_both_sizes(sharded: Path, change: int, kind: str):
    """ComfyUI#15602."""
    content = (sharded / SECOND_SHARD).read_bytes()
    (sharded / SECOND_SHARD).write_bytes(content[:change] if change < 0 else content + bytes(change))
    message = refusal(sharded)
    assert SECOND_SHARD in message
    assert kind in message
    assert f"asks for {len(content)} bytes, the file has {len(content) + change}" in message


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_in_the_config_is_named_by_path_and_line(single: Path, word: str):
    """dynamo#3043, transformers#42959."""
    text = (single / "config.json").read_text(encoding="utf-8")
    line = text[: text.index("1e-06")].count("\n") + 1
    (single / "config.json").write_text(text.replace("1e-06", word), encoding="utf-8")
    message = refusal(single)
    assert f"{single / 'config.json'}: line {line}, column " in message
    assert f": {word} is not a finite number" in message


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_weights_that_are_quantized_already_are_refused_by_name(tmp_path: Path, dtype: type):
    tensors = {"a": np.ones(4, np.float32), "layers.0.q": np.ones(4, np.int8).view(np.uint8).astype(dtype)}
    message = refusal(write_checkpoint(tmp_path, CONFIG, tensors), UnsupportedError)
    assert "layers.0.q" in message
    assert "quantized" in message


def test_what_is_no_checkpoint_is_refused(single: Path, tmp_path: Path):
    for path in (tmp_path / "nowhere", single / "config.json"):
        assert "is no directory" in refusal(path)
    (single / "config.json").unlink()
    assert str(single / "config.json") in refusal(single)


def test_an_unsupported_model_is_refused_before_its_weights_are_looked_at(single: Path):
    write_json(single / "config.json", {**CONFIG, "model_type": "qwen3_moe"})
    (single / "model.safetensors").unlink()
    assert "'qwen3_moe'" in refusal(single, UnsupportedError)


def test_the_directory_is_only_read(sharded: Path, tmp_path: Path):
    copy = shutil.copytree(sharded, tmp_path / "copy")
    checkpoint = Checkpoint.open(ModelText(sharded))
    for name in checkpoint.tensors:
        whole(checkpoint, name)
    names = sorted(path.name for path in copy.iterdir())
    assert sorted(path.name for path in sharded.iterdir()) == names
    assert all((sharded / name).read_bytes() == (copy / name).read_bytes() for name in names)
