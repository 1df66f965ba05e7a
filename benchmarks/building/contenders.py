"""What each contender runs to get from a checkpoint to its int4 files, and the versions of it."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from qpack_schemas.errors import UsageError

FOLDER = Path(__file__).parent
NAMES = ("qpack", "llama-q4_0-pure", "llmcompressor-w4a16")
OURS = NAMES[0]
_VERSIONS = """
import sys
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in sys.argv[1:]), sep=", ")
"""
OUTPUT = "{output}"  # stands for the folder of a run in the arguments of its steps


@dataclass(frozen=True)
class Contender:
    """`steps`: name -> command line; they follow each other. `result` is what they leave of use, within the folder."""

    name: str
    steps: Mapping[str, Sequence[str]]
    result: str
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Tools:
    """Where the other contenders are: a Python that has their packages, llama.cpp's source and its program."""

    python: str
    llama_source: Path | None
    llama_quantize: Path | None


def contender(name: str, checkpoint: Path, tools: Tools, threads: int) -> Contender:
    """Raises UsageError if something of it is not named."""
    if name == OURS:
        command = [str(Path(sys.executable).with_name("qpack")), "build", str(checkpoint), "-o", f"{OUTPUT}/bundle"]
        facts = {"version": f"qpack {version('qpack-llm')}", "output": "head and embedding int8, synced to disk"}
        return Contender(name, {"build": [*command, "--progress", "plain"]}, "bundle", facts)
    if name.startswith("llmcompressor"):
        script = str(FOLDER / "llmcompressor_rtn.py")
        command = [tools.python, script, str(checkpoint), f"{OUTPUT}/model", str(threads)]
        facts = {"version": _versions(tools.python, "llmcompressor", "torch"), "output": "head and embedding bfloat16"}
        return Contender(name, {"quantize": command}, "model", facts)
    if tools.llama_source is None or tools.llama_quantize is None:
        raise UsageError(
            f"{name} needs llama.cpp's source and its program llama-quantize",
            remedy="name them with --llama-source and --llama-quantize, or choose others with --contenders",
        )
    plain, small = f"{OUTPUT}/bf16.gguf", f"{OUTPUT}/q4_0.gguf"
    convert = [tools.python, str(FOLDER / "llama_convert.py"), str(tools.llama_source), str(checkpoint)]
    steps = {
        "convert": [*convert, "--outtype", "bf16", "--outfile", plain],
        "quantize": [str(tools.llama_quantize), "--pure", plain, small, "Q4_0", str(threads)],
    }
    facts = {"version": f"llama.cpp, {_versions(tools.python, 'torch')}", "output": "everything Q4_0, the head too"}
    return Contender(name, steps, "q4_0.gguf", facts)


def _versions(python: str, *packages: str) -> str:
    ran = subprocess.run([python, "-c", _VERSIONS, *packages], capture_output=True, encoding="utf-8", check=False)
    if ran.returncode != 0:
        raise UsageError(
            f"{python} has not all of {', '.join(packages)}",
            remedy="name a Python that has them with --python; see benchmarks/requirements.txt",
        )
    return ran.stdout.strip()
