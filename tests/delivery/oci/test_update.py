"""One tensor of a model changes: one weight file moves."""

from pathlib import Path

from bundles import ASSETS, build_bundle
from checkpoints import read_config, read_tensors, write_checkpoint
from oci_registry import Registry, Road
from qpack_delivery.oci.modelpack import artifact_of
from qpack_delivery.oci.pull import pull
from qpack_delivery.oci.push import push
from qpack_delivery.oci.reference import Reference
from qpack_schemas.bundle import open_bundle

from .bundles_made import contents


def test_an_update_of_one_tensor_moves_the_files_that_it_changes(place: Reference, registry: Registry, tmp_path: Path):
    """Counted by qpack, and by whoever stands on the road."""
    model = ASSETS / "tiny-qwen3"
    tensors = read_tensors(model)
    changed = next(name for name in sorted(tensors) if name.endswith("layers.1.mlp.down_proj.weight"))
    tensors = {**tensors, changed: tensors[changed] * 2}
    old = build_bundle(model, tmp_path / "old")
    new = build_bundle(write_checkpoint(tmp_path / "model", read_config(model), tensors), tmp_path / "new")
    before, after = contents(old), contents(new)
    differ = {name for name in after if before.get(name) != after[name]}
    shards = sorted(name for name in differ if name.startswith("weights/"))
    assert len(shards) == 1
    assert len([name for name in after if name.startswith("weights/")]) > 1
    moving = sum(len(after[name]) for name in differ)
    push(old, place)
    pull(place, tmp_path / "bundle")
    with Road(registry.address) as road:
        far = Reference.parse(f"{road.address}/{place.repository}:1")
        config = len(artifact_of(open_bundle(new)).config)
        assert push(new, far).bytes_moved in (moving, moving + config)
        assert moving < road.moved["up"] < moving + 50_000
        pulled = pull(far, tmp_path / "bundle")
        assert (pulled.bytes_moved, pulled.bytes_there) == (moving, sum(map(len, after.values())) - moving)
        assert moving < road.moved["down"] < moving + 50_000
    assert contents(tmp_path / "bundle") == after
    assert contents(tmp_path / "bundle.previous") == before
