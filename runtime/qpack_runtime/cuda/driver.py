"""The functions of the CUDA driver API that the executor calls, through ctypes on libcuda.

Names are the symbols of the library, `_v2` included where a header's macro would add it. All of them are exported by
every driver from CUDA 12.0 (Linux 525) on, but for those in OPTIONAL. Reference: CUDA Driver API, docs.nvidia.com.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from qpack_schemas.errors import UnsupportedError

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2  # CUresult


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        *((f"{what}Dim{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "XYZ"),
        ("sharedMemBytes", ctypes.c_uint),
        ("kernelParams", ctypes.c_void_p),  # void **
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    ]


class Out:
    """Marks a result: the C function takes a pointer to it, `Driver.call` returns its value."""

    def __init__(self, kind: Any):
        self.kind = kind


INT, UINT, SIZE, FLAGS, FLOAT = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_float
HANDLE, DEVICE_POINTER, HOST_POINTER, TEXT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
HANDLES, COUNT = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t)

SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [UINT],
    "cuDriverGetVersion": [Out(INT)],
    "cuDeviceGet": [Out(INT), INT],
    "cuDeviceGetName": [TEXT, INT, INT],
    "cuDeviceGetAttribute": [Out(INT), INT, INT],
    "cuDeviceTotalMem_v2": [Out(SIZE), INT],
    "cuDevicePrimaryCtxRetain": [Out(HANDLE), INT],
    "cuCtxSetCurrent": [HANDLE],
    "cuMemGetInfo_v2": [Out(SIZE), Out(SIZE)],
    "cuMemAlloc_v2": [Out(DEVICE_POINTER), SIZE],
    "cuMemHostAlloc": [Out(HOST_POINTER), SIZE, UINT],
    "cuMemFreeHost": [HOST_POINTER],
    "cuMemsetD8Async": [DEVICE_POINTER, ctypes.c_ubyte, SIZE, HANDLE],
    "cuMemcpyHtoDAsync_v2": [DEVICE_POINTER, HOST_POINTER, SIZE, HANDLE],
    "cuMemcpyDtoDAsync_v2": [DEVICE_POINTER, DEVICE_POINTER, SIZE, HANDLE],
    "cuMemcpyDtoHAsync_v2": [HOST_POINTER, DEVICE_POINTER, SIZE, HANDLE],
    "cuStreamCreate": [Out(HANDLE), UINT],
    "cuStreamSynchronize": [HANDLE],
    "cuStreamBeginCapture_v2": [HANDLE, INT],
    "cuStreamEndCapture": [HANDLE, Out(HANDLE)],
    "cuEventCreate": [Out(HANDLE), UINT],
    "cuEventRecord": [HANDLE, HANDLE],
    "cuEventSynchronize": [HANDLE],
    "cuEventElapsedTime": [Out(FLOAT), HANDLE, HANDLE],
    "cuModuleLoadData": [Out(HANDLE), TEXT],
    "cuModuleGetFunction": [Out(HANDLE), HANDLE, TEXT],
    "cuFuncSetAttribute": [HANDLE, INT, INT],
    "cuFuncGetName": [Out(TEXT), HANDLE],
    "cuLaunchKernel": [HANDLE, *[UINT] * 7, HANDLE, HOST_POINTER, HOST_POINTER],
    "cuGraphCreate": [Out(HANDLE), UINT],
    "cuGraphAddKernelNode_v2": [Out(HANDLE), HANDLE, HANDLES, SIZE, ctypes.POINTER(KernelNodeParams)],
    "cuGraphGetNodes": [HANDLE, HANDLES, COUNT],
    "cuGraphNodeGetType": [HANDLE, Out(INT)],
    "cuGraphNodeGetDependencies": [HANDLE, HANDLES, COUNT],
    "cuGraphKernelNodeGetParams_v2": [HANDLE, ctypes.POINTER(KernelNodeParams)],
    "cuGraphInstantiateWithFlags": [Out(HANDLE), HANDLE, FLAGS],
    "cuGraphDestroy": [HANDLE],
    "cuGraphExecDestroy": [HANDLE],
    "cuGraphUpload": [HANDLE, HANDLE],
    "cuGraphLaunch": [HANDLE, HANDLE],
}
OPTIONAL = frozenset({"cuFuncGetName"})  # from CUDA 12.3 on

_RESTART = "restart the process; if it happens again, name this error, the GPU and the bundle_id in a report"
_OTHER_BUILD = "build the bundle for this GPU and this driver"
REMEDIES = {
    OUT_OF_MEMORY: "end other processes on the GPU, or build with smaller --slots, --context or --batch",
    35: "update the NVIDIA driver",  # INSUFFICIENT_DRIVER
    36: "update the NVIDIA driver",  # CALL_REQUIRES_NEWER_DRIVER
    46: "end the process that holds the GPU exclusively, see nvidia-smi",  # DEVICE_UNAVAILABLE
    100: "check nvidia-smi and CUDA_VISIBLE_DEVICES; a container needs --gpus all",  # NO_DEVICE
    200: "copy or build the bundle again",  # INVALID_IMAGE
    209: _OTHER_BUILD,  # NO_BINARY_FOR_GPU
    214: "the GPU reports an uncorrectable memory error: restart the host, then replace the GPU",  # ECC_UNCORRECTABLE
    218: _OTHER_BUILD,  # INVALID_PTX
    221: "install the driver with its PTX compiler (libnvidia-ptxjitcompiler), or leave out --allow-ptx",
    222: "update the NVIDIA driver, or build the bundle for this GPU",  # UNSUPPORTED_PTX_VERSION
    700: _RESTART,  # ILLEGAL_ADDRESS
    702: "a display's watchdog ended a kernel: use a GPU without a display",  # LAUNCH_TIMEOUT
    716: _RESTART,  # MISALIGNED_ADDRESS
    719: _RESTART,  # LAUNCH_FAILED
    802: "start nvidia-fabricmanager, or wait until it has started",  # SYSTEM_NOT_READY
    803: "restart the host: libcuda and the kernel's driver are of different versions",  # SYSTEM_DRIVER_MISMATCH
    804: "remove the forward-compatibility libcuda: this GPU does not support it",  # COMPAT_NOT_SUPPORTED_ON_DEVICE
    999: "load the kernel's driver again (modprobe -r nvidia_uvm; modprobe nvidia_uvm) or restart the host",  # UNKNOWN
}


class DriverError(UnsupportedError):
    """A driver call failed. `call` names it, `code` is its CUresult, `name` that code's name."""

    def __init__(self, call: str, code: int, name: str):
        super().__init__(f"{call} failed: {name} ({code})", remedy=REMEDIES.get(code, ""))
        self.call, self.code, self.name = call, code, name


class Driver:
    """libcuda, loaded. `call(name, ...)` takes the inputs of a function and returns its results.

    Raises UnsupportedError if the library, or one of its functions, is not there."""

    def __init__(self, library: str = LIBRARY):
        # Read by cuInit. Otherwise a kernel may be loaded by its first launch, with an allocation and a wait.
        os.environ["CUDA_MODULE_LOADING"] = "EAGER"
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise UnsupportedError(
                f"there is no NVIDIA driver on this host: {error}",
                remedy="install it (Linux driver 525 or newer), give the container its GPUs, or take another --device",
            ) from None
        self._calls = {name: self._bind(name) for name in SIGNATURES if self._exports(name)}

    def call(self, name: str, *arguments: Any) -> Any:
        """None, the result, or a tuple of results. Raises DriverError."""
        return self._calls[name](*arguments)

    def has(self, name: str) -> bool:
        return name in self._calls

    def list_handles(self, name: str, handle: int) -> list[int]:
        """What a function with the arguments (of, handles, count) lists, asked for their number first."""
        count = ctypes.c_size_t()
        self.call(name, handle, None, count)
        handles = (ctypes.c_void_p * max(count.value, 1))()
        if count.value:
            self.call(name, handle, handles, count)
        return [one or 0 for one in handles[: count.value]]

    def _exports(self, name: str) -> bool:
        if hasattr(self._library, name):
            return True
        if name in OPTIONAL:
            return False
        raise UnsupportedError(
            f"the NVIDIA driver is too old: {LIBRARY} has no {name}", remedy="update it to 525 or newer"
        )

    def _bind(self, name: str) -> Callable[..., Any]:
        kinds, function = SIGNATURES[name], getattr(self._library, name)
        function.argtypes = [ctypes.POINTER(kind.kind) if isinstance(kind, Out) else kind for kind in kinds]
        function.restype = ctypes.c_int
        places = [(index, kind.kind) for index, kind in enumerate(kinds) if isinstance(kind, Out)]

        def plain(*arguments: Any) -> None:
            if code := function(*arguments):
                raise DriverError(name, code, self._error_name(code))

        def with_results(*arguments: Any) -> Any:
            results, passed = [kind() for _, kind in places], list(arguments)
            for (index, _), result in zip(places, results, strict=True):
                passed.insert(index, ctypes.byref(result))
            plain(*passed)
            values = tuple(result.value for result in results)
            return values[0] if len(values) == 1 else values

        return with_results if places else plain

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value
        return text.value.decode("ascii") if known and text.value else "an error this driver has no name for"


def argument_pointers(arguments: Any, offsets: Sequence[int]) -> Any:
    """`kernelParams` of a launch: pointers into the argument bytes, a ctypes buffer that must live as long."""
    base = ctypes.addressof(arguments)
    return (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))
