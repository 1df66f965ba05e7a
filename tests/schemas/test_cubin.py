"""Cubins and PTX are read as NVIDIA's cuobjdump reads them, and no damage to them does more than give an error."""

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubins import assemble, compile_trivial, cuobjdump, empty_ptx
from qpack_schemas.cubin import Code, Entry, read_cubin
from qpack_schemas.errors import InputError
from qpack_schemas.kernel_rules import argument_places, check_kernel
from qpack_schemas.manifest import Kernel, Target
from qpack_schemas.ptx import oldest_driver, read_ptx

ARCHITECTURES = (80, 89, 90, 120)
NAMES = ("scale_0123abcd", "product_0123abcd")
BOTH = pytest.mark.parametrize(("name", "sm"), [(name, sm) for name in NAMES for sm in ARCHITECTURES])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_trivial(tmp_path_factory.mktemp("trivial"), *ARCHITECTURES)


@BOTH
def test_a_cubin_is_read_as_cuobjdump_reads_it(compiled: Path, name: str, sm: int):
    file = compiled / f"{name}.{sm}.cubin"
    code = read_cubin(file.read_bytes(), "f")
    elf, usage = cuobjdump(file, "-elf"), cuobjdump(file, "-res-usage")
    said = re.search(r"\bsm=(\d+)(a?), toolkit=([\d.]+)", elf)
    assert said
    assert (code.architecture, code.exact) == (int(said[1]), said[2] == "a")
    assert code.toolkit == int(said[3].replace(".", ""))
    assert list(code.entries) == re.findall(r"Function (\w+):", usage) == [name]
    entry = code.entries[name]
    used = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert used
    assert (entry.registers, entry.frame_bytes) == (int(used[1]), int(used[2]))
    own = elf[elf.index(f"\n.nv.info.{name}\n") :]
    own = own[: own.find("\n.nv.", 10)]
    found = re.findall(r"Ordinal : 0x(\w+)\s+Offset  : 0x(\w+)\s+Size    : 0x(\w+)", own)
    assert dict(enumerate(entry.params)) == {int(o, 16): (int(at, 16), int(size, 16)) for o, at, size in found}
    block = re.search(r"EIATTR_REQNTID\s+Format:\s+EIFMT_SVAL\s+Value:\s+0x(\w+) 0x(\w+) 0x(\w+)", own)
    assert block
    assert entry.block == tuple(int(size, 16) for size in block.groups())


def test_the_facts_of_the_two_kernels_are_those_of_their_sources(compiled: Path):
    """By hand: a scalar between pointers leaves a gap, and two hidden pointers follow."""
    for sm in ARCHITECTURES:
        scale = read_cubin((compiled / f"scale_0123abcd.{sm}.cubin").read_bytes(), "f").entries["scale_0123abcd"]
        product = read_cubin((compiled / f"product_0123abcd.{sm}.cubin").read_bytes(), "f").entries["product_0123abcd"]
        assert scale.params == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
        assert product.params == ((0, 8), (8, 8), (16, 8), (24, 4), (32, 8), (40, 8), (48, 8))
        assert (scale.block, product.block) == ((128, 1, 1), (64, 1, 1))
        assert scale.frame_bytes == product.frame_bytes == 0


@BOTH
def test_ptx_says_the_same_as_its_cubin_of_arguments_and_block(compiled: Path, name: str, sm: int):
    code = read_ptx((compiled / f"{name}.{sm}.ptx").read_bytes(), "f")
    cubin = read_cubin((compiled / f"{name}.{sm}.cubin").read_bytes(), "f")
    assert (code.architecture, code.exact) == (cubin.architecture, cubin.exact)
    entry, same = code.entries[name], cubin.entries[name]
    assert (list(code.entries), entry.params, entry.block) == ([name], same.params, same.block)
    assert (entry.registers, entry.frame_bytes, code.toolkit) == (None, None, None)


@pytest.mark.parametrize("assembler", ["ptxas", "ptxas-blackwell"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103a", "sm_120", "sm_120a"])
def test_code_for_one_architecture_alone_is_told_from_portable_code(assembler: str, target: str, tmp_path: Path):
    """By two assemblers, which mark it in three ways."""
    code = read_cubin(assemble(empty_ptx("k", ["*bf16"], target=target), tmp_path, assembler), "f")
    assert (f"sm_{code.architecture}", code.exact) == (target.rstrip("a"), target.endswith("a"))
    # CUDA 12.9 and 13.4; minor version compatibility reaches back to the first release of a major version.
    assert (code.toolkit, code.oldest_driver) == {"ptxas": (129, 12000), "ptxas-blackwell": (134, 13000)}[assembler]


def test_spilled_registers_show_as_stack(tmp_path: Path):
    """Here an array, whose address leaves the kernel so that it is not optimised away."""
    escape = ["mov.u64 %r1, a", "cvta.local.u64 %r2, %r1", "ld.param.u64 %r3, [k_param_0]", "st.global.u64 [%r3], %r2"]
    body = ";\n\t".join([".local .align 8 .b8 a[400]", ".reg .b64 %r<4>", *escape, "ret;"])
    image = assemble(empty_ptx("k", []).replace("ret;", body), tmp_path)
    assert read_cubin(image, "f").entries["k"].frame_bytes == 400
    assert "STACK:400" in cuobjdump(tmp_path / "out.cubin", "-res-usage")


@pytest.mark.parametrize(
    ("major", "minor", "driver"),
    [
        (7, 8, 11080),
        (8, 0, 12000),
        (8, 5, 12050),
        (8, 6, 12070),
        (8, 7, 12080),
        (8, 8, 12090),
        (9, 0, 13000),
        (9, 1, 13010),
    ],
)
def test_ptx_needs_the_driver_of_the_release_that_brought_its_version(major: int, minor: int, driver: int):
    """Release history of the PTX ISA document."""
    assert oldest_driver(major, minor) == driver


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "begins with nothing"),
        (b"MZ\x90\x00", "begins with 4d 5a 90 00"),
        (b"\x7fELF", "not ELF64"),
        (b"\x7fELF\x01\x01" + bytes(100), "not ELF64"),
        (b"\x7fELF\x02\x01", "beyond its end"),
        (b"\x7fELF\x02\x01\x01\x00\x00" + bytes(100), "no CUDA code"),
        (Path("/bin/true").read_bytes(), "machine 62"),
    ],
)  # fmt: skip
def test_what_is_no_cubin_is_refused_in_words(image: bytes, message: str):
    with pytest.raises(InputError, match="cubin") as caught:
        read_cubin(image, "kernels/sm_89/k.cubin")
    assert message in caught.value.message
    assert caught.value.where == "kernels/sm_89/k.cubin"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line .version"),
        (".version 8.8\n", "no line .target"),
        (".version 8.8\n.target sm_89\n.visible .entry k(\n", "has no body"),
        (".version 8.8\n.target sm_89\n.visible .entry k()\n", "has no body"),
        (empty_ptx("k", []).replace("u64", "b8"), "no pointer or number"),
        (empty_ptx("k", []).replace("u64 .ptr .global .align 1 k_param_0", "align 8 .b8 k_param_0[16]"), "no pointer"),
        ("é", "not ASCII"),
    ],
)
def test_what_is_no_ptx_is_refused_in_words(text: str, message: str):
    with pytest.raises(InputError) as caught:
        read_ptx(text.encode("utf-8"), "k.ptx")
    assert message in caught.value.message


def test_reading_hostile_ptx_takes_time_by_its_length_only():
    """A search that starts over at every entry would take hours."""
    with pytest.raises(InputError):
        read_ptx(b".version 8.8\n.target sm_89\n" + b".visible .entry k(\n" * 500_000, "f")
    spaces = b".reqntid 1 " + b" " * 500 + b"\n"
    read_ptx(b".version 8.8\n.target sm_89\n.visible .entry k()\n" + spaces * 1000 + b"{", "f")


def test_sections_that_cover_the_file_again_and_again_are_refused(compiled: Path):
    """Thousands of them would be read for hours."""
    image = bytearray((compiled / f"{NAMES[0]}.89.cubin").read_bytes())
    table, count = int.from_bytes(image[0x28:0x30], "little"), int.from_bytes(image[0x3C:0x3E], "little")
    for header in range(table + 3 * 64, table + count * 64, 64):  # all but the names
        image[header + 24 : header + 40] = bytes(8) + len(image).to_bytes(8, "little")
    with pytest.raises(InputError, match="not within"):
        read_cubin(bytes(image), "f")


def kernel_of(entry: Entry, params: list[list[str]]) -> Kernel:
    assert entry.block
    return {
        "file": "k.bin", "sha256": "", "function": "tests.k", "block": entry.block[0], "shared_bytes": 0,
        "registers": entry.registers, "spills": entry.frame_bytes, "params": params, "constants": {},
    }  # fmt: skip


def target_of(code: Code) -> Target:
    return {
        "architecture": f"sm_{code.architecture}{'a' * code.exact}",
        "scope": "exact" if code.exact else "major", "format": "cubin",
        "toolkit": code.toolkit or 129, "min_driver": code.oldest_driver, "max_shared_bytes": 0, "work_bytes": {},
        "minimum_device_bytes": 0, "compilers": {}, "kernels": {},
    }  # fmt: skip


PARAMS = [["x", "*bf16"], ["w", "*bf16"], ["n", "*i64"], ["R", "i32"], ["y", "*fp32"]]
NAME = "product_0123abcd"


@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_a_kernel_is_what_its_entry_says(compiled: Path, tmp_path: Path, sm: int):
    image = (compiled / f"{NAME}.{sm}.cubin").read_bytes()
    code = read_cubin(image, "f")
    (tmp_path / "k.bin").write_bytes(image)
    kernel, target = kernel_of(code.entries[NAME], PARAMS), target_of(code)
    assert check_kernel(tmp_path, NAME, kernel, target) == []
    assert argument_places(kernel) == code.entries[NAME].params

    def messages(name: str = NAME, of: Target | None = None, **changes: object) -> list[str]:
        changed: Kernel = {**kernel, **changes}  # type: ignore[typeddict-item]
        return [finding.message for finding in check_kernel(tmp_path, name, changed, of or target)]

    for found, words in (
        (messages(name="product_ffffffff"), "has the entries: product_0123abcd"),
        (messages(params=PARAMS[:-1]), "takes arguments at"),
        (messages(params=[*PARAMS[:3], ["R", "*i32"], PARAMS[4]]), "takes arguments at"),
        (messages(params=[*PARAMS, ["z", "i32"]]), "takes arguments at"),
        (messages(block=32), "is compiled for a block of (64, 1, 1)"),
        (messages(registers=1), "registers, the manifest says 1"),
        (messages(registers=None), "registers, the manifest says None"),
        (messages(spills=8), "has 0 bytes of stack, the manifest says 8"),
        (messages(of={**target, "architecture": "sm_86"}), f"is for sm_{sm}"),
        (messages(of={**target, "toolkit": 128}), "was assembled by toolkit"),
        (messages(of={**target, "min_driver": 11080}), "needs a driver for"),
    ):
        assert len(found) == 1, found
        assert words in found[0]
    other = f"sm_{sm}" if code.exact else f"sm_{sm}a"
    assert messages(of={**target, "architecture": other}) == [
        f"is for {target['architecture']}, the target says {other}"
    ]


def test_a_kernel_of_the_other_format_is_refused(compiled: Path, tmp_path: Path):
    image = (compiled / f"{NAME}.89.cubin").read_bytes()
    code = read_cubin(image, "f")
    kernel, target = kernel_of(code.entries[NAME], PARAMS), target_of(code)
    (tmp_path / "k.bin").write_bytes((compiled / f"{NAME}.89.ptx").read_bytes())
    assert "is no cubin" in check_kernel(tmp_path, NAME, kernel, target)[0].message
    ptx: Target = {**target, "format": "ptx", "scope": "newer", "min_driver": 12090}
    kernel: Kernel = {**kernel, "registers": None, "spills": None}
    assert check_kernel(tmp_path, NAME, kernel, ptx) == []
    assert len(check_kernel(tmp_path, NAME, kernel, {**ptx, "min_driver": 12080})) == 1
    assert len(check_kernel(tmp_path, NAME, kernel, {**ptx, "toolkit": 128})) == 1
    (tmp_path / "k.bin").write_bytes(image)
    assert "is no PTX" in check_kernel(tmp_path, NAME, kernel, ptx)[0].message


@given(data=st.data())
def test_a_damaged_cubin_gives_an_error_or_a_reading(compiled: Path, data: st.DataObject):
    """Bits flipped, most of them where the structures are, and the end cut off."""
    sm = data.draw(st.sampled_from(ARCHITECTURES))
    image = bytearray((compiled / f"{data.draw(st.sampled_from(NAMES))}.{sm}.cubin").read_bytes())
    table = int.from_bytes(image[0x28:0x30], "little")
    spots = (
        st.integers(0, 0x3F) | st.integers(table, min(table + 2000, len(image) - 1)) | st.integers(0, len(image) - 1)
    )
    for at in data.draw(st.lists(spots, max_size=4)):
        image[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.just(len(image)) | st.integers(0, len(image)))
    with contextlib.suppress(InputError):
        assert isinstance(read_cubin(bytes(image[:cut]), "f"), Code)


@given(data=st.data())
def test_damaged_ptx_gives_an_error_or_a_reading(compiled: Path, data: st.DataObject):
    image = bytearray((compiled / f"{NAME}.120.ptx").read_bytes())
    for at in data.draw(st.lists(st.integers(0, 1200) | st.integers(0, len(image) - 1), max_size=4)):
        image[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(image)))
    with contextlib.suppress(InputError):
        assert isinstance(read_ptx(bytes(image[:cut]), "f"), Code)
