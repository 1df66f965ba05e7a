"""The GPU targets of a bundle: what each needs of a host, and the kernels of a step."""

from collections import Counter
from dataclasses import dataclass

from qpack_packager.commands.roofline import LAUNCH_SECONDS
from qpack_packager.pages.charts import Bar, bars
from qpack_packager.pages.render import Figure
from qpack_schemas.bundle import Bundle
from qpack_schemas.manifest import Kernel, Target, compiled_targets
from qpack_schemas.program import KINDS, Kind
from qpack_schemas.targets import cuda_version


@dataclass(frozen=True)
class KernelUse:
    name: str
    kernel: Kernel
    launches: dict[Kind, int]  # of a step


@dataclass(frozen=True)
class TargetFacts:
    name: str
    target: Target
    cuda: str  # oldest version that the driver must support
    code_bytes: int
    launches: dict[Kind, int]
    kernels: list[KernelUse]  # most launches first

    @property
    def registers(self) -> int | None:
        """The most that a thread takes; None: known only to the driver that compiles the PTX."""
        return max((use.kernel["registers"] for use in self.kernels if use.kernel["registers"]), default=None)

    @property
    def spills(self) -> int | None:
        """Bytes of local memory per thread, of all kernels together; None as above."""
        known = [use.kernel["spills"] for use in self.kernels if use.kernel["spills"] is not None]
        return sum(known) if known else None


def target_facts(bundle: Bundle) -> list[TargetFacts]:
    """Of every GPU target, by name; those that a driver compiles last."""
    sizes = {entry["path"]: entry["bytes"] for entry in bundle.manifest["files"]}
    found: list[TargetFacts] = []
    for name, target in compiled_targets(bundle.manifest["targets"]).items():
        tables = bundle.tables[name]
        counts = {kind: Counter(launch.kernel for launch in tables[kind].launches) for kind in KINDS}
        uses = [
            KernelUse(kernel, facts, {kind: counts[kind][kernel] for kind in KINDS})
            for kernel, facts in target["kernels"].items()
        ]
        uses.sort(key=lambda use: (-use.launches["decode"], -use.launches["prefill"], use.name))
        found.append(
            TargetFacts(
                name,
                target,
                cuda_version(target["min_driver"]),
                sum(sizes[path] for path in {kernel["file"] for kernel in target["kernels"].values()}),
                {kind: len(tables[kind].launches) for kind in KINDS},
                uses,
            )
        )
    return sorted(found, key=lambda facts: (facts.target["format"] == "ptx", facts.name))


def launch_figure(facts: TargetFacts) -> Figure:
    """Launches of a decode step by the function that is launched."""
    counts = Counter[str]()
    for use in facts.kernels:
        counts[use.kernel["function"]] += use.launches["decode"]
    rows = [
        Bar(function, count, f"{count:,}", 1, f"{function}: launched {count:,} times")
        for function, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count
    ]
    return Figure(
        "Launches of a decode step",
        bars(f"Launches of each kernel function in a decode step on {facts.name}", rows),
        f"On {facts.name}, {sum(counts.values()):,} kernels are replayed as one CUDA graph; each boundary between two "
        f"costs about {1e6 * LAUNCH_SECONDS:.1f} μs.",
    )
