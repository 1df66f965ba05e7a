"""The stub libcuda, built, and called directly: what is not the executor's own binding."""

import ctypes
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "cuda_stub"
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
)

Hook = Callable[[str, int, tuple[int, ...], bytes], object]  # kernel, FNV-1a 64 of its image, grid and block, arguments
_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p, ctypes.c_uint
)


def build_stub(folder: Path, *flags: str) -> Path:
    """Compiles the stub to folder/libcuda.so.1. It has no SONAME: who opens it by its path doesn't give it to others
    of this process, who ask for "libcuda.so.1"."""
    library = folder / "libcuda.so.1"
    command = ["cc", *FLAGS, *flags, "-o", library, *sorted(SOURCES.glob("*.c"))]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stderr
    return library


class DriverStatus(Exception):
    """A call that did not return 0. `name` is what cuGetErrorName says without CUDA_ERROR_."""

    def __init__(self, call: str, name: str):
        super().__init__(f"{call}: {name}")
        self.name = name


class Stub:
    """The stub library, reset, in this process. Every integer goes to it as 64 bits, which fits any of its arguments.

    settings: CC (89), MEM (bytes), DRIVER (13000), SMS, INTEGRATED and EAGER."""

    def __init__(self, library: Path, **settings: int):
        self.loaded = ctypes.CDLL(str(library))
        self.hooks: list[Any] = []  # ctypes callbacks that C may still call
        self.call("stub_reset")
        self.set_hook(None)
        self.call("stub_log", None)
        for name, value in {"CC": 89, "MEM": 1 << 30, "DRIVER": 13000, "SMS": 24, "INTEGRATED": 0, "EAGER": 0}.items():
            self.set(name, settings.get(name, value))

    def status(self, name: str, *arguments: Any) -> str:
        """Calls a function; the name of the error that it returns, "SUCCESS" if it is none."""
        code = self.loaded[name](*map(_passed, arguments))
        text = ctypes.c_char_p()
        self.loaded.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or str(code).encode()).decode().removeprefix("CUDA_").removeprefix("ERROR_")

    def call(self, name: str, *arguments: Any) -> None:
        """Raises DriverStatus if the function fails."""
        if (status := self.status(name, *arguments)) != "SUCCESS":
            raise DriverStatus(name, status)

    def get(self, name: str, *arguments: Any, place: int = 0) -> int:
        """What the function writes through its argument number `place`, which `arguments` leave out."""
        result = ctypes.c_uint64()
        self.call(name, *arguments[:place], ctypes.byref(result), *arguments[place:])
        return result.value

    def set(self, name: str, value: int) -> None:
        self.call("stub_set", name.encode(), value)

    def set_hook(self, function: Hook | None) -> None:
        """`function` runs for every kernel. An exception fails the launch, and is kept in `raised`."""
        self.raised: list[Exception] = []

        def guarded(name: bytes, image: int, dims: Any, arguments: int, count: int) -> int:
            assert function is not None
            try:
                function(name.decode(), image, tuple(dims[:6]), ctypes.string_at(arguments, count))
            except Exception as error:
                self.raised.append(error)
                return 1
            return 0

        hook = _Callback(guarded) if function else None
        self.hooks.append(hook)
        self.call("stub_set_hook", hook)

    def boot(self) -> None:
        self.call("cuInit", 0)
        self.call("cuCtxSetCurrent", self.get("cuDevicePrimaryCtxRetain", 0))

    def host(self, data: bytes) -> int:
        """Pinned memory that holds `data`."""
        address = self.get("cuMemHostAlloc", len(data), 0)
        ctypes.memmove(address, data, len(data))
        return address

    def holds(self, address: int, count: int) -> bool:
        """Whether these bytes lie within one allocation on the device."""
        return bool(self.loaded.stub_holds(*map(_passed, (address, count))))

    def intact(self) -> bool:
        """Whether nothing was written beside an allocation."""
        return bool(self.loaded.stub_intact())


def launch(
    function: int, grid: Sequence[int], block: int, stream: int, arguments: Sequence[Any], shared: int = 0
) -> tuple[Any, ...]:
    """The arguments of cuLaunchKernel; `arguments` are ctypes values."""
    return function, *grid, block, 1, 1, shared, stream, pointers(arguments), None


def pointers(arguments: Sequence[Any]) -> Any:
    """`kernelParams`; keeps the ctypes values alive."""
    array: Any = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    array.arguments = arguments
    return array


class KernelParams(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_uint64), ("dims", ctypes.c_uint * 6), ("shared", ctypes.c_uint),
        ("params", ctypes.POINTER(ctypes.c_void_p)), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )  # fmt: skip


class NodeParams(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("kernel", KernelParams),
        ("rest", ctypes.c_char * (29 * 8 - ctypes.sizeof(KernelParams))), ("reserved2", ctypes.c_longlong),
    )  # fmt: skip


def bytes_at(address: int, count: int) -> bytes:
    return ctypes.string_at(address, count)


def fnv(data: bytes) -> int:
    """FNV-1a, 64 bits, http://www.isthe.com/chongo/tech/comp/fnv/."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def environment(library: Path, settings: Mapping[str, int | str]) -> dict[str, str]:
    """For a process of its own whose libcuda.so.1 is the stub; settings are CC, MEM, LOG and so on."""
    return {"LD_LIBRARY_PATH": str(library.parent), **{f"STUB_{name}": str(value) for name, value in settings.items()}}


def _passed(argument: Any) -> Any:
    return ctypes.c_uint64(argument) if isinstance(argument, int) else argument
