"""What PTX says about itself: the same facts as a cubin, as far as there are any before a driver compiles it.

Grammar: "PTX ISA", chapters "PTX Module Directives" and "Kernel and Function Directives".
"""

import re
from collections.abc import Iterator

from qpack_schemas.cubin import Code, Entry
from qpack_schemas.errors import InputError

_TYPE_BYTES = {"u64": 8, "b64": 8, "s64": 8, "f64": 8, "u32": 4, "b32": 4, "s32": 4, "f32": 4}
# CUDA releases that brought a version of PTX ("PTX ISA", release history), where the minor numbers differ.
_CUDA_OF_PTX = {(8, 6): 12070, (8, 7): 12080, (8, 8): 12090}
_VERSION = re.compile(r"^\.version ([0-9]{1,2})\.([0-9])$", re.MULTILINE)
_TARGET = re.compile(r"^\.target sm_([0-9]{2,3})([a-z]?)$", re.MULTILINE)
_ENTRY = re.compile(r"^\.visible \.entry (\w{1,256})\(", re.MULTILINE)
_PARAM = re.compile(r"\.param \.(\w+) (?:\.ptr (?:\.\w+ )?(?:\.align [0-9]+ )?)?\w+")
_BLOCK = re.compile(r"\.reqntid ([0-9]{1,10})(?:, ?([0-9]{1,10}))?(?:, ?([0-9]{1,10}))?")


def read_ptx(image: bytes, where: str) -> Code:
    """The facts of the PTX text `image`. Raises InputError, naming `where`, for anything else."""
    try:
        text = image.decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError(f"is no PTX: byte {error.start} is not ASCII", where=where) from None
    version, target = _VERSION.search(text), _TARGET.search(text)
    if not version or not target:
        missing = ".target sm_N" if version else ".version"
        raise InputError(f"is no PTX: it has no line {missing}", where=where)
    entries = dict(_entries(text, where))
    driver = oldest_driver(int(version[1]), int(version[2]))
    return Code(int(target[1]), bool(target[2]), driver, None, entries)


def oldest_driver(major: int, minor: int) -> int:
    """The first driver, as cuDriverGetVersion counts, that compiles PTX of this version. Unlike a cubin, PTX is not
    read by every driver of its major version."""
    return _CUDA_OF_PTX.get((major, minor), (major + 4) * 1000 + minor * 10)


def _entries(text: str, where: str) -> Iterator[tuple[str, Entry]]:
    place = 0
    while head := _ENTRY.search(text, place):  # each character is looked at once, however the text is made
        close = text.find(")", head.end())
        place = text.find("{", close)
        if close < 0 or place < 0:
            raise InputError(f"is truncated PTX: kernel {head[1]!r} has no body", where=where)
        params = tuple(_params(head[1], text[head.end() : close], where))
        yield head[1], Entry(params, _block(text[close:place]), None, None)


def _params(name: str, params: str, where: str) -> Iterator[tuple[int, int]]:
    """(offset, bytes), at natural alignment."""
    place = 0
    for text in filter(None, (part.strip() for part in params.split(","))):
        found = _PARAM.fullmatch(text)
        size = _TYPE_BYTES.get(found[1]) if found else None
        if size is None:
            raise InputError(
                f"kernel {name!r} has a parameter that is no pointer or number: {text[:80]!r}", where=where
            )
        place = -(-place // size) * size
        yield place, size
        place += size


def _block(directives: str) -> tuple[int, int, int] | None:
    found = _BLOCK.search(directives)
    return (int(found[1]), int(found[2] or 1), int(found[3] or 1)) if found else None
