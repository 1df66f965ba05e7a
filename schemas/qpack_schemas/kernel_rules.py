"""Is a compiled kernel what the manifest says: for this architecture, with these arguments, of this block size?

A driver copies as many argument bytes as the kernel declares and believes the host about the rest, so a kernel that
differs from its entry would read what lies behind the arguments.
"""

from collections.abc import Iterator
from pathlib import Path

from qpack_schemas.cubin import MOST_BYTES, Code, Entry, read_cubin
from qpack_schemas.errors import Finding, InputError
from qpack_schemas.manifest import Kernel, Target
from qpack_schemas.ptx import read_ptx

POINTER_BYTES = 8
# Triton passes the addresses of its global and its profiling scratch behind the arguments; neither is ever used.
HIDDEN_ARGUMENTS = (POINTER_BYTES, POINTER_BYTES)
_READERS = {"cubin": read_cubin, "ptx": read_ptx}


def argument_places(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of every argument in the kernel's argument buffer, the hidden ones last: in order, each at its
    natural alignment."""
    sizes = [POINTER_BYTES if kind.startswith("*") else 4 for _, kind in kernel["params"]]
    places: list[tuple[int, int]] = []
    end = 0
    for size in (*sizes, *HIDDEN_ARGUMENTS):
        begin = -(-end // size) * size
        places.append((begin, size))
        end = begin + size
    return tuple(places)


def check_kernel(root: Path, name: str, kernel: Kernel, target: Target) -> list[Finding]:
    """The file of one kernel against its entry and its target. It must be a file of the bundle."""
    file, path = kernel["file"], root / kernel["file"]
    if (size := path.stat().st_size) > MOST_BYTES:
        return [Finding(file, f"has {size} bytes; no kernel has more than {MOST_BYTES}")]
    try:
        code = _READERS[target["format"]](path.read_bytes(), file)
    except InputError as error:
        return [Finding(file, error.message)]
    return [Finding(file, message) for message in _messages(name, kernel, target, code)]


def _messages(name: str, kernel: Kernel, target: Target, code: Code) -> Iterator[str]:
    if (own := f"sm_{code.architecture}{'a' if code.exact else ''}") != target["architecture"]:
        yield f"is for {own}, the target says {target['architecture']}"
    if code.toolkit is None:
        if (needs := code.oldest_driver // 10 % 100 + code.oldest_driver // 1000 * 10) > target["toolkit"]:
            yield f"cannot be read by toolkit {target['toolkit']}, which the target says: it needs {needs}"
    elif code.toolkit != target["toolkit"]:
        yield f"was assembled by toolkit {code.toolkit}, the target says {target['toolkit']}"
    if code.oldest_driver > target["min_driver"]:
        yield f"needs a driver for {code.oldest_driver}, the target says min_driver {target['min_driver']}"
    if list(code.entries) != [name]:
        shown = ", ".join(sorted(code.entries)[:5]) or "none"
        yield f"has the entries: {shown[:200]}; it must have {name!r} and no other"
    else:
        yield from _entry_messages(kernel, code.entries[name])


def _entry_messages(kernel: Kernel, entry: Entry) -> Iterator[str]:
    if entry.params != (places := argument_places(kernel)):
        yield f"takes arguments at (offset, bytes) {list(entry.params)}, the manifest's params are at {list(places)}"
    if entry.block != (block := (kernel["block"], 1, 1)):
        yield f"is compiled for a block of {entry.block}, the manifest says {block}"
    if entry.registers != kernel["registers"]:
        yield f"has {entry.registers} registers, the manifest says {kernel['registers']}"
    if entry.frame_bytes != kernel["spills"]:
        yield f"has {entry.frame_bytes} bytes of stack, the manifest says {kernel['spills']} of spills"
