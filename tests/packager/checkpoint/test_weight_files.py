import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import FIRST_SHARD, INDEX, SECOND_SHARD, numbers, write_checkpoint, write_json, write_weights
from qpack_packager.checkpoint.weight_files import find_weights
from qpack_schemas.errors import InputError


def edit_index(directory: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    edit(index["weight_map"])
    write_json(directory / INDEX, index)


def refusal(directory: Path) -> str:
    with pytest.raises(InputError) as caught:
        find_weights(directory)
    assert caught.value.where
    return str(caught.value)


PLACES = st.sampled_from([FIRST_SHARD, SECOND_SHARD, "gone.safetensors", "config.json", "/etc/passwd", "", "..", 1])
FIRST, SECOND = {"a": FIRST_SHARD, "b": FIRST_SHARD}, {"c": SECOND_SHARD, "d": SECOND_SHARD}
RIGHT = FIRST | SECOND


@given(st.dictionaries(st.sampled_from("abcde"), PLACES, max_size=5))
def test_any_index_but_of_whole_shards_is_refused(tmp_path_factory: pytest.TempPathFactory, places: dict[str, Any]):
    directory = write_checkpoint(tmp_path_factory.mktemp("any"), {}, numbers(*RIGHT), shards=2)
    for index in (places, RIGHT | places):
        if index not in (RIGHT, FIRST, SECOND):  # a shard that none names is passed over
            write_json(directory / INDEX, {"weight_map": index})
            refusal(directory)


def test_a_shard_that_is_absent_is_named(sharded: Path):
    """sglang#32279."""
    (sharded / SECOND_SHARD).unlink()
    message = refusal(sharded)
    assert SECOND_SHARD in message
    assert FIRST_SHARD not in message


def test_a_tensor_that_its_shard_lacks_is_named_with_the_shard(sharded: Path):
    """huggingface_hub#4725."""
    edit_index(sharded, lambda weight_map: weight_map.update({"ghost": SECOND_SHARD}))
    message = refusal(sharded)
    assert "'ghost'" in message
    assert SECOND_SHARD in message


def test_a_tensor_in_another_shard_than_the_index_says_is_named_with_both(sharded: Path):
    """mlx-vlm#638: the index of another sharding."""
    edit_index(sharded, lambda weight_map: weight_map.update({"a": SECOND_SHARD}))
    message = refusal(sharded)
    assert "'a'" in message
    assert FIRST_SHARD in message
    assert SECOND_SHARD in message


def test_a_tensor_that_the_index_does_not_list_is_named_with_its_shard(sharded: Path):
    """AReaL#1403: an index that agrees with itself and has lost tensors."""
    edit_index(sharded, lambda weight_map: weight_map.pop("d"))
    message = refusal(sharded)
    assert "'d'" in message
    assert SECOND_SHARD in message


def test_a_tensor_in_two_shards_is_named_with_both(sharded: Path):
    write_weights(sharded / SECOND_SHARD, numbers("c", "d", "a"))
    message = refusal(sharded)
    assert "'a'" in message
    assert FIRST_SHARD in message
    assert SECOND_SHARD in message


def test_a_stray_file_beside_indexed_shards_is_reported_and_not_read(sharded: Path):
    """mlx-vlm#1464."""
    write_weights(sharded / "model.safetensors", numbers("a", "z"))
    weights = find_weights(sharded)
    assert list(weights.spans) == [FIRST_SHARD, SECOND_SHARD]
    (note,) = weights.notes
    assert note.startswith("model.safetensors is passed over")


def test_nothing_is_noted_where_nothing_is_odd(single: Path, sharded: Path):
    assert find_weights(single).notes == find_weights(sharded).notes == ()


@pytest.mark.parametrize("shard", ["../outside.safetensors", "x/../../outside.safetensors", "..\\outside.safetensors"])
def test_a_shard_outside_the_directory_is_refused_although_it_exists(sharded: Path, shard: str):
    write_weights(sharded.parent / "outside.safetensors", numbers("a"))
    for place in (shard, str(sharded.parent / "outside.safetensors")):
        edit_index(sharded, lambda weight_map, place=place: weight_map.update({"a": place}))
        message = refusal(sharded)
        assert "outside the checkpoint's directory" in message
        assert f"{INDEX}#/weight_map/a" in message


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 1}}, []])
def test_an_index_that_is_none_is_refused(sharded: Path, index: object):
    write_json(sharded / INDEX, index)
    assert INDEX in refusal(sharded)


def test_the_place_in_an_index_is_a_json_pointer(sharded: Path):
    """RFC 6901 writes / as ~1 and ~ as ~0."""
    write_json(sharded / INDEX, {"weight_map": {"a/b~c": 1}})
    assert f"{INDEX}#/weight_map/a~1b~0c: is 1" in refusal(sharded)


# Which file, if there is no index.


def test_several_shards_without_an_index_are_refused(sharded: Path):
    (sharded / INDEX).unlink()
    message = refusal(sharded)
    assert FIRST_SHARD in message
    assert INDEX in message


def test_one_of_several_shards_is_not_taken_for_the_model(sharded: Path):
    (sharded / INDEX).unlink()
    (sharded / SECOND_SHARD).unlink()
    assert f"{FIRST_SHARD} is one of 2 shards" in refusal(sharded)


def test_model_safetensors_is_the_model_and_others_are_reported(single: Path):
    write_weights(single / "model-copy.safetensors", numbers("z"))
    weights = find_weights(single)
    assert list(weights.spans) == ["model.safetensors"]
    assert [note.split()[0] for note in weights.notes] == ["model-copy.safetensors"]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_the_remedy(single: Path, name: str):
    (single / "model.safetensors").rename(single / name)
    message = refusal(single)
    assert name in message
    assert "save_pretrained" in message


def test_a_directory_without_weights_is_refused(single: Path):
    (single / "model.safetensors").unlink()
    assert "no *.safetensors" in refusal(single)
