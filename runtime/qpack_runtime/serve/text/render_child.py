"""The process in which chat templates are rendered, started by TemplateProcess as `python -m ... SECONDS CHARACTERS`.
It limits itself, compiles the template, and answers frames from stdin on stdout until stdin ends.

A frame is the number of bytes that follow, 4 of them, big endian, then JSON in UTF-8; the first one holds the template
itself, and its answer says whether that compiles. It imports Jinja and chat_template, nothing that loads numpy or a
tokenizer.
"""

import json
import math
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from qpack_runtime.chat_template import Template
from qpack_schemas.errors import UsageError

LENGTH = struct.Struct(">I")
ROOM = 256 << 20  # bytes of address space beyond what the imports took
FILES = 16  # descriptors: three are open, a late import needs one
GRACE = 2  # seconds of processor time beyond the parent's limit, which comes first unless the parent is gone


def main() -> None:
    seconds, most_characters = float(sys.argv[1]), int(sys.argv[2])
    for stopped in (signal.SIGINT, signal.SIGTERM):  # a server that is told to stop still answers what it has begun
        signal.signal(stopped, signal.SIG_IGN)
    _limit()
    _limit_processor(seconds)
    try:
        template = Template((_read() or b"").decode("utf-8"))
    except UsageError as error:
        return _write(_as_json(error))
    _write({"ready": True})
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the parent reads stderr no longer
    while _answer_next(template, seconds, most_characters):
        pass


def _answer_next(template: Template, seconds: float, most_characters: int) -> bool:
    """Whether there was another request. Nothing of it is kept while the next one is waited for."""
    if (request := _read()) is None:
        return False
    _limit_processor(seconds)
    _write(_answer(template, request, most_characters))
    return True


def _answer(template: Template, request: bytes, most_characters: int) -> dict[str, Any]:
    try:
        # Half of a surrogate pair comes this far, so that one place, the template, says what is wrong with it.
        asked = json.loads(request.decode("utf-8", "surrogatepass"))
        return {"prompt": template.render(**asked, most_characters=most_characters)}
    except UsageError as error:
        return _as_json(error)
    except (MemoryError, RecursionError):  # of reading the request; the template's own are UsageErrors
        return _as_json(UsageError("is too large or nested too deeply to be rendered", where="messages"))


def _as_json(error: UsageError) -> dict[str, Any]:
    return {"error": {"message": error.message, "where": error.where, "remedy": error.remedy}}


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + ROOM,
        resource.RLIMIT_FSIZE: 0,  # pipes are no files
        resource.RLIMIT_NOFILE: FILES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _limit_processor(seconds: float) -> None:
    """The kernel ends this process when it has computed for so long from now on."""
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = math.ceil(spent + seconds) + GRACE
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _read() -> bytes | None:
    """The next request, or None where stdin ends."""
    head = sys.stdin.buffer.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    request = sys.stdin.buffer.read(length)
    return request if len(request) == length else None


def _write(answer: dict[str, Any]) -> None:
    data = json.dumps(answer, ensure_ascii=False).encode("utf-8")
    sys.stdout.buffer.write(LENGTH.pack(len(data)) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
