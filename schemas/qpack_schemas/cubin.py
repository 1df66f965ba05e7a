"""What a cubin says about itself, read without a driver: architecture, assembler, kernels and their parameters.

A cubin is an ELF64 file (little-endian, machine 190). The code of kernel NAME is section `.text.NAME`; the low 24 bits
of that section's sh_info are the kernel's symbol. `.nv.info` and `.nv.info.NAME` hold records: format u8, attribute u8,
u16, and after format 4 a payload of as many bytes as the u16 says. NVIDIA does not publish this; the numbers below are
those that `cuobjdump -elf` prints by name (EIATTR_*, EICOMPAT_*) for cubins of CUDA 12.9 and 13.4, sm_80 to sm_121.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qpack_schemas.errors import InputError

MOST_BYTES = 1 << 26  # of a kernel file that is read; compiled kernels have some tens of kilobytes

_MACHINE = 190  # EM_CUDA
_NOBITS = 8  # a section without bytes in the file
_SVAL = 4  # the record format with a payload
# In .nv.info.NAME
_REQUIRED_BLOCK, _PARAMETER, _PARAMETER_BYTES, _TOOLKIT = 0x10, 0x17, 0x19, 0x37
# In .nv.info, each for a symbol
_FRAME_BYTES, _REGISTERS = 0x11, 0x2F
# In .nv.compat: 1 if the code uses the features of one architecture only (sm_90a)
_ACCELERATOR_TARGET = 0x09


@dataclass(frozen=True)
class Entry:
    """One kernel. `params` are (offset, bytes) in order; None stands for what the file does not say."""

    params: tuple[tuple[int, int], ...]
    block: tuple[int, int, int] | None  # the only block size that it may be launched with
    registers: int | None  # per thread
    frame_bytes: int | None  # stack per thread, which is where registers are spilled to


@dataclass(frozen=True)
class Code:
    """A file of compiled kernels."""

    architecture: int  # 89 for sm_89
    exact: bool  # sm_90a: runs on that compute capability only
    oldest_driver: int  # as cuDriverGetVersion counts
    toolkit: int | None  # of the assembler, 129 = CUDA 12.9
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class _Section:
    name: str
    data: bytes
    info: int


@dataclass(frozen=True)
class _Record:
    attribute: int
    value: int  # the u16
    payload: bytes

    def u32(self, index: int = 0) -> int:
        (value,) = struct.unpack_from("<I", self.payload, 4 * index)
        return value


def read_cubin(image: bytes, where: str) -> Code:
    """The facts of the cubin `image`. Raises InputError, naming `where`, for anything that is no whole cubin."""
    if image[:4] != b"\x7fELF":
        raise InputError(
            f"is no cubin: begins with {image[:4].hex(' ') or 'nothing'}, not with an ELF header", where=where
        )
    try:
        return _read(image)
    except struct.error:
        raise InputError("is a truncated or damaged cubin: a structure reaches beyond its end", where=where) from None
    except ValueError as error:
        raise InputError(f"is a damaged cubin: {error}", where=where) from None


def _read(image: bytes) -> Code:
    if image[4:6] != b"\x02\x01":
        raise ValueError("it is not ELF64, little-endian")
    machine, flags, abi = *struct.unpack_from("<H", image, 0x12), *struct.unpack_from("<I", image, 0x30), image[8]
    if machine != _MACHINE or abi not in (7, 8):
        raise ValueError(f"machine {machine}, ABI {abi} is no CUDA code known here ({_MACHINE}, ABI 7 or 8)")
    _check_segments(image)
    sections = {section.name: section for section in _sections(image)}
    names = sorted(name.removeprefix(".text.") for name in sections if name.startswith(".text."))
    per_symbol = list(_records(sections, ".nv.info"))
    entries: dict[str, Entry] = {}
    toolkits: set[int] = set()
    for name in names:
        records = list(_records(sections, f".nv.info.{name}"))
        toolkits |= {record.u32() for record in records if record.attribute == _TOOLKIT}
        entries[name] = _entry(name, sections[f".text.{name}"].info & 0xFFFFFF, records, per_symbol)
    if len(toolkits) != 1:
        raise ValueError(f"it names {len(toolkits)} assemblers, not one")
    (toolkit,) = toolkits
    if abi == 7:
        architecture, exact = flags & 0xFF, bool(flags & 0x800)
    else:
        accelerated = any(
            r.attribute == _ACCELERATOR_TARGET and r.value & 0xFF == 1 for r in _records(sections, ".nv.compat")
        )
        architecture, exact = flags >> 8 & 0xFF, bool(flags & 0x8) or accelerated
    # Minor version compatibility: every driver of the assembler's major version loads its cubins.
    return Code(architecture, exact, toolkit // 10 * 1000, toolkit, entries)


def _entry(name: str, symbol: int, records: list[_Record], per_symbol: list[_Record]) -> Entry:
    params: dict[int, tuple[int, int]] = {}
    total, block = 0, None
    for record in records:
        if record.attribute == _PARAMETER:
            _, ordinal, offset, size = struct.unpack_from("<IHHI", record.payload)
            params[ordinal] = offset, size >> 18
        elif record.attribute == _PARAMETER_BYTES:
            total = record.value
        elif record.attribute == _REQUIRED_BLOCK:
            block = record.u32(0), record.u32(1), record.u32(2)
    placed = tuple(params[ordinal] for ordinal in sorted(params))
    if list(params) and sorted(params) != list(range(len(params))):
        raise ValueError(f"parameters {sorted(params)} of {name!r} leave one out")
    if (end := max((offset + size for offset, size in placed), default=0)) != total:
        raise ValueError(f"the parameters of {name!r} end at byte {end}, but take {total} bytes")
    of_kernel = {r.attribute: r.u32(1) for r in per_symbol if len(r.payload) == 8 and r.u32() == symbol}
    return Entry(placed, block, of_kernel.get(_REGISTERS), of_kernel.get(_FRAME_BYTES))


def _check_segments(image: bytes) -> None:
    """The program headers stand last in a cubin, so that a truncated one lacks them."""
    (table,) = struct.unpack_from("<Q", image, 0x20)
    width, count = struct.unpack_from("<HH", image, 0x36)
    for index in range(count):
        _, _, begin, _, _, size = struct.unpack_from("<IIQQQQ", image, table + width * index)
        if width < 56 or begin + size > len(image) or table + width * (index + 1) > len(image):
            raise ValueError(f"segment {index} is not within the file's {len(image)} bytes")


def _sections(image: bytes) -> Iterator[_Section]:
    """Sections by the table of headers. Their bytes together are at most the file's, so a hostile table cannot make
    the same bytes be read thousands of times."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    width, count, names = struct.unpack_from("<HHH", image, 0x3A)
    if width != 64 or names >= count:
        raise ValueError(f"{count} section headers of {width} bytes, names in section {names}")
    if table + width * count > len(image):
        raise ValueError(f"the section headers end at byte {table + width * count}, the file at {len(image)}")
    headers = [struct.unpack_from("<IIQQQQII", image, table + width * index) for index in range(count)]
    read, begin, size = 0, headers[names][4], headers[names][5]
    strings = image[begin : begin + size]
    for name, kind, _, _, begin, size, _, info in headers:
        size = 0 if kind == _NOBITS else size
        read += size
        if begin + size > len(image) or read > len(image):
            raise ValueError(f"a section of {size} bytes at byte {begin} is not within the file's {len(image)}")
        end = strings.find(b"\0", name)
        if name >= len(strings) or end < 0:
            raise ValueError("the name of a section is not among the names")
        try:
            text = strings[name:end].decode("ascii")
        except UnicodeDecodeError:
            raise ValueError("the name of a section is not ASCII") from None
        yield _Section(text, image[begin : begin + size], info)


def _records(sections: Mapping[str, _Section], name: str) -> Iterator[_Record]:
    data = sections[name].data if name in sections else b""
    place = 0
    while place < len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, place)
        length = value if form == _SVAL else 0
        payload = data[place + 4 : place + 4 + length]
        if len(payload) < length:
            raise ValueError(f"a record of {name} reaches beyond its end")
        yield _Record(attribute, value, payload)
        place += 4 + length
