"""The declarations of driver.py against NVIDIA's header, and what a host without a usable driver is told."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import triton

from qpack_runtime.cuda.driver import OPTIONAL, REMEDIES, SIGNATURES, Driver, DriverError, KernelNodeParams, Out
from qpack_schemas.errors import UnsupportedError

HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
HEADER = (HEADERS / "cuda.h").read_text(encoding="utf-8")
C_TYPES = {  # of the header -> what ctypes passes
    "int": ctypes.c_int, "unsigned int": ctypes.c_uint, "size_t": ctypes.c_size_t, "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_ulonglong, "CUdevice": ctypes.c_int, "CUdeviceptr": ctypes.c_uint64,
    "CUdevice_attribute": ctypes.c_int, "CUfunction_attribute": ctypes.c_int, "CUgraphNodeType": ctypes.c_int,
    "CUstreamCaptureMode": ctypes.c_int, "float": ctypes.c_float, "char *": ctypes.c_char_p, "void *": ctypes.c_void_p,
    **{f"CU{name}": ctypes.c_void_p for name in
       ("context", "stream", "event", "module", "function", "graph", "graphNode", "graphExec")},
}  # fmt: skip
POINTED = {"CUgraphNode *": ctypes.c_void_p, "size_t *": ctypes.c_size_t, "CUDA_KERNEL_NODE_PARAMS *": KernelNodeParams}


def declarations(symbol: str) -> list[list[str]]:
    """The parameter types of every declaration of a function that a macro of the header makes `symbol`, or that has
    its name; older interfaces are declared as well."""
    plain = symbol.removesuffix("_v2")
    found = re.findall(rf"CUresult CUDAAPI (?:{symbol}|{plain})\(([^)]*)\);", HEADER)
    if symbol == "cuGraphInstantiateWithFlags":
        found += re.findall(r"CUresult CUDAAPI cuGraphInstantiate\(([^)]*)\);", HEADER)
    return [[type_of(parameter) for parameter in " ".join(text.split()).split(",")] for text in found]


def type_of(parameter: str) -> str:
    words, stars, _ = re.fullmatch(r"\s*(?:const )?([\w ]+?) ?((?:\*|const)*)(\w+)", parameter.strip()).groups()  # type: ignore
    return f"{words} {stars}" if stars else words


def fits(kind: object, declared: str) -> bool:
    if isinstance(kind, Out):
        return declared == "void **" or (declared.endswith("*") and C_TYPES.get(declared[:-1].rstrip()) is kind.kind)
    if declared in POINTED:
        return kind == ctypes.POINTER(POINTED[declared])
    if declared in ("void *", "void **"):
        return kind in (ctypes.c_void_p, ctypes.c_char_p)
    return C_TYPES.get(declared) is kind


@pytest.mark.parametrize("symbol", SIGNATURES)
def test_a_signature_is_what_the_header_declares(symbol: str):
    kinds = SIGNATURES[symbol]
    assert any(len(declared) == len(kinds) and all(map(fits, kinds, declared)) for declared in declarations(symbol)), (
        declarations(symbol)
    )


@pytest.mark.parametrize("symbol", [name for name in SIGNATURES if f"define {name.removesuffix('_v2')} " in HEADER])
def test_a_name_is_the_one_that_the_header_makes_of_it_or_an_older_that_drivers_keep(symbol: str):
    plain = symbol.removesuffix("_v2")
    made = re.findall(rf"#\s*define {plain} +(?:__CUDA_API_PTSZ\()?(\w+)", HEADER)
    # Older forms: of the first, which has no edge types to lose; of the second, whose newer one is from CUDA 12.8.
    assert symbol in made or symbol in {"cuGraphNodeGetDependencies", "cuEventElapsedTime"}


def test_the_parameters_of_a_kernel_node_lie_where_c_puts_them(tmp_path: Path):
    names = [name for name, *_ in KernelNodeParams._fields_]
    offsets = ", ".join(f"offsetof(CUDA_KERNEL_NODE_PARAMS_v2, {name})" for name in names)
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        "#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n"
        f"size_t all[] = {{{offsets}, sizeof(CUDA_KERNEL_NODE_PARAMS_v2)}};\n"
        'for (unsigned i = 0; i < sizeof all / sizeof *all; i++) printf("%zu ", all[i]);\nreturn 0;\n}\n',
        encoding="utf-8",
    )
    subprocess.run(["cc", "-I", HEADERS, "-o", program, source], check=True)
    printed = subprocess.run([program], capture_output=True, encoding="utf-8", check=True).stdout
    wanted = [getattr(KernelNodeParams, name).offset for name in names] + [ctypes.sizeof(KernelNodeParams)]
    assert list(map(int, printed.split())) == wanted


@pytest.mark.parametrize("code", REMEDIES)
def test_a_remedy_stands_at_an_error_that_the_header_knows(code: int):
    gone = {35}  # INSUFFICIENT_DRIVER, of the runtime API, which a driver may hand through
    assert code in gone or re.search(rf"CUDA_ERROR_\w+ *= {code}\b", HEADER)


def test_a_host_without_a_driver_is_told_what_to_install():
    with pytest.raises(UnsupportedError, match="no NVIDIA driver") as raised:
        Driver("libcuda-that-is-not-there.so.1")
    assert raised.value.exit_code == 4
    assert "525" in raised.value.remedy


def test_a_driver_without_one_of_the_functions_is_too_old(tmp_path: Path):
    library = tmp_path / "libcuda.so.1"
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return flags ? 1 : 100; }\n", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(UnsupportedError, match=r"too old: .* has no cu"):
        Driver(str(library))


def test_a_failed_call_names_call_code_and_remedy(stub_library: Path):
    driver = Driver(str(stub_library))
    with pytest.raises(DriverError, match=r"cuStreamSynchronize failed: CUDA_ERROR_\w+ \(\d+\)"):
        driver.call("cuStreamSynchronize", 12345)
    error = DriverError("cuInit", 100, "CUDA_ERROR_NO_DEVICE")
    assert error.exit_code == 4
    assert "--gpus all" in error.remedy
    assert {"cuFuncGetName"} == OPTIONAL
