"""The machine of the comparison: what decides how fast a step can be on it."""

import re
from pathlib import Path
from typing import Any

from qpack_runtime.bench.host import describe_host

# Of x86 and of Arm: those that matrix products and conversions of bfloat16 are made of.
INSTRUCTIONS = (
    "avx2", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme",
)  # fmt: skip


def describe(threads: int) -> dict[str, Any]:
    """As `qpack-runtime bench` describes a host, `instructions` being what the processor has."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    has = set(flags[0].split()) if flags else set()
    return describe_host(threads, " ".join(name for name in INSTRUCTIONS if name in has))
