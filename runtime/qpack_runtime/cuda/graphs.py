"""The graphs of a bundle: built, checked and instantiated in the manifest's order, one per bucket."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from qpack_runtime.boot_watch import BootWatch
from qpack_runtime.cuda.driver import Driver, DriverError
from qpack_runtime.cuda.graph import build_graph, capture_graph, instantiate
from qpack_runtime.cuda.graph_check import check_graph, fingerprint
from qpack_runtime.cuda.kernels import LoadedKernel
from qpack_runtime.cuda.launches import DirectLaunch, KernelLaunch, bind
from qpack_runtime.cuda.memory import DeviceMemory
from qpack_schemas.bundle import Bundle
from qpack_schemas.errors import UnsupportedError
from qpack_schemas.launch_table import table_path
from qpack_schemas.manifest import Bucket


class Graphs:
    """Launches a bucket by its name. `fingerprints` tells what each graph holds, the same at every boot; `watch` is
    told of each that is ready.

    Raises IntegrityError if the driver holds another graph than the table asks for. If it makes none, raises
    UnsupportedError, or with `allow_eager` launches kernel by kernel and counts that in `eager_launches`."""

    def __init__(
        self,
        driver: Driver,
        stream: int,
        bundle: Bundle,
        target: str,
        kernels: Mapping[str, LoadedKernel],
        memory: DeviceMemory,
        watch: BootWatch,
        *,
        allow_eager: bool,
        capture: bool,
    ):
        self._driver, self._stream, self._kernels, self._memory = driver, stream, kernels, memory
        self._capture = capture
        self._executables: dict[str, int] = {}
        self._direct: dict[str, list[DirectLaunch]] = {}
        self._bound: dict[str, list[KernelLaunch]] = {}
        self.fingerprints: dict[str, str] = {}
        self.notes: list[str] = []
        self.eager_launches = 0
        buckets = {bucket["name"]: bucket for bucket in bundle.manifest["buckets"]}
        for name in bundle.manifest["capture_order"]:
            launches = self._bound[name] = self._bind(bundle, target, buckets[name])
            try:
                where = f"{table_path(target, buckets[name]['program'])} for {name}"
                self._executables[name], self.fingerprints[name] = self._make(launches, where)
            except DriverError as error:
                if not allow_eager:
                    raise UnsupportedError(
                        f"the driver makes no graph of {name}: {error.message}",
                        remedy="update the driver, or launch kernel by kernel, which is slower, with --allow-eager",
                    ) from None
                self._direct[name] = self._make_direct(name)
                self.notes.append(f"{name} runs without a graph, kernel by kernel: {error.message}")
            watch.bucket_ready(name)

    def launch(self, bucket: str) -> None:
        """Enqueues the kernels of a bucket; nothing waits."""
        if bucket in self._executables:
            self._driver.call("cuGraphLaunch", self._executables[bucket], self._stream)
            return
        self.launch_eagerly(bucket)
        self.eager_launches += len(self._bound[bucket])

    def launch_eagerly(self, bucket: str, before: Callable[[int], object] | None = None) -> None:
        """The same kernels without a graph, one by one; `before` is called with the number of each before it is
        enqueued."""
        if bucket not in self._direct:
            self._direct[bucket] = self._make_direct(bucket)
        for index, launch in enumerate(self._direct[bucket]):
            if before is not None:
                before(index)
            launch.enqueue(self._driver, self._stream)

    def _bind(self, bundle: Bundle, target: str, bucket: Bucket) -> list[KernelLaunch]:
        kind, rows = bucket["program"], bucket["rows"]
        table = bundle.tables[target][kind]
        return bind(table, self._kernels, rows, bucket["context"], lambda name: self._memory.address(name, kind, rows))

    def _make_direct(self, bucket: str) -> list[DirectLaunch]:
        return [DirectLaunch(one, self._kernels[one.kernel].offsets) for one in self._bound[bucket]]

    def _make(self, launches: Sequence[KernelLaunch], where: str) -> tuple[int, str]:
        """The executable graph, and its fingerprint."""
        if self._capture:  # a stream says of each kernel only that it follows the one before
            launches = [replace(one, after=(index - 1,) if index else ()) for index, one in enumerate(launches)]
            graph = capture_graph(self._driver, self._stream, launches, self._kernels)
        else:
            graph = build_graph(self._driver, launches, self._kernels)
        nodes = check_graph(self._driver, graph, launches, self._kernels, where)
        return instantiate(self._driver, self._stream, graph), fingerprint(nodes, self._kernels, self._memory)
