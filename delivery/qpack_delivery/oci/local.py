"""Bundles that lie on this host already: whether one is at a path, whether it is the one wanted, what it has of it."""

from collections.abc import Mapping
from pathlib import Path

from qpack_delivery.oci.modelpack import Layer
from qpack_schemas.bundle_files import MANIFEST, sha256_of
from qpack_schemas.errors import InputError, UsageError
from qpack_schemas.manifest import checksum_of
from qpack_schemas.strict_json import load_strict


def previous_of(output: Path) -> Path:
    """Where a bundle goes that another takes the place of."""
    return output.with_name(f"{output.name}.previous")


def refuse_others(path: Path) -> None:
    """Raises UsageError if something is there that is no bundle: it would be moved away."""
    if path.is_symlink():
        raise UsageError("is a symbolic link", where=str(path), remedy="name the directory itself")
    if path.exists() and not _listed(path):
        raise UsageError(
            "exists and is no bundle of qpack", where=str(path), remedy="name another path, or remove it first"
        )


def holds(path: Path, layers: Mapping[str, Layer]) -> bool:
    """Whether these files, and no others, are at `path`, byte for byte."""
    if not path.is_dir() or not _is(path / MANIFEST, layers[MANIFEST]):
        return False
    present = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_symlink() or not file.is_dir()}
    return present == set(layers) and all(_is(path / name, layer) for name, layer in layers.items())


class Local:
    """The files of several bundles, by their contents."""

    def __init__(self, *bundles: Path):
        self._bundles = {bundle: _listed(bundle) for bundle in bundles}

    def find(self, layer: Layer) -> Path | None:
        """A file with the bytes of `layer`, which may have another name there."""
        for bundle, listed in self._bundles.items():
            for name in dict.fromkeys((layer.path, *listed.get(layer.digest, ()))):
                if _is(bundle / name, layer):
                    return bundle / name
        return None


def _is(file: Path, layer: Layer) -> bool:
    if file.is_symlink() or not file.is_file() or file.stat().st_size != layer.bytes:
        return False
    return f"sha256:{sha256_of(file)}" == layer.digest


def _listed(path: Path) -> dict[str, list[str]]:
    """digest -> names of files, by the manifest at `path`; empty if there is none that is qpack's."""
    try:
        manifest = load_strict(path / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("checksum") != checksum_of(manifest):
            return {}
        listed: dict[str, list[str]] = {}
        for entry in manifest["files"]:
            listed.setdefault(f"sha256:{entry['sha256']}", []).append(str(entry["path"]))
        return listed
    except (InputError, OSError, KeyError, TypeError, RecursionError):
        return {}
