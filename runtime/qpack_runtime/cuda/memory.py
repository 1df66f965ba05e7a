"""Device memory: one allocation per arena, of exactly the planned bytes, and the address of every buffer in it."""

from collections.abc import Mapping

from qpack_runtime.cuda.driver import OUT_OF_MEMORY, REMEDIES, Driver, DriverError
from qpack_schemas.bundle import Bundle
from qpack_schemas.bundle_rules import shared_buffers
from qpack_schemas.errors import FitError
from qpack_schemas.launch_table import LaunchTable
from qpack_schemas.manifest import compiled_targets
from qpack_schemas.memory import weight_places
from qpack_schemas.program import Arena, Kind


class DeviceMemory:
    """The four arenas of a bundle on the GPU. Their contents are whatever the memory held before.

    `sizes` and `base` are bytes and device address by arena, `files` the place of each weight file in its arena."""

    def __init__(self, driver: Driver, bundle: Bundle, target: str):
        self._bundle = bundle
        self._tables: Mapping[Kind, LaunchTable] = bundle.tables[target]
        self.shared = shared_buffers(bundle.manifest)
        places, weights_bytes = weight_places(bundle.manifest["files"])
        self.files = {bundle.path / path: begin for path, begin in places.items()}
        planned, own = bundle.manifest["memory"], compiled_targets(bundle.manifest["targets"])[target]
        self.sizes: dict[Arena, int] = {
            "weights": weights_bytes,
            "state": planned["state_bytes"],
            "io": planned["io_bytes"],
            "work": max(own["work_bytes"].values()),
        }
        assert sum(self.sizes.values()) == own["minimum_device_bytes"], "the plan is not the sum of its arenas"
        self.base: dict[Arena, int] = {arena: _allocate(driver, arena, size) for arena, size in self.sizes.items()}

    def address(self, name: str, kind: Kind, rows: int) -> int:
        """Where a buffer that a launch names lies, in a bucket of `rows` rows."""
        if name in self._bundle.tensors:
            path, span = self._bundle.tensors[name]
            return self.base["weights"] + self.files[path] + span.begin
        if name in self._tables[kind].work:
            return self.base["work"] + rows * self._tables[kind].work[name].offset
        buffer = self.shared.get(name) or self._bundle.programs[kind].buffers[name]
        return self.base[buffer.arena] + buffer.offset

    def arena_of(self, address: int) -> tuple[Arena, int] | None:
        """The arena that a device address lies in, and the offset in it in bytes."""
        for arena, base in self.base.items():
            if base <= address < base + self.sizes[arena]:
                return arena, address - base
        return None


def _allocate(driver: Driver, arena: Arena, size: int) -> int:
    try:
        return driver.call("cuMemAlloc_v2", size)
    except DriverError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        free, total = driver.call("cuMemGetInfo_v2")
        raise FitError(
            f"the arena of {arena} takes {size:,} bytes; of the GPU's {total:,} bytes {free:,} are free",
            remedy=REMEDIES[OUT_OF_MEMORY],
        ) from None
