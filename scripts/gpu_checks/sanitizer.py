"""Piece `sanitizer`: the parity piece once more under compute-sanitizer, which sees every access of a kernel."""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from .outcome import Line, Outcome, Settings

TOOLS = {"memcheck": "accesses out of bounds or misaligned", "racecheck": "races in shared memory"}
FOUND = 86  # exit code when it found something; the script has no such code
PROMPT = 40  # tokens: under the sanitizer everything takes tens of times as long
TAIL = 30  # lines of its output that are kept


def run_sanitizer(script: Path, bundle: Path, settings: Settings) -> Outcome:
    """Both tools on one bundle. Left out where compute-sanitizer is not on the PATH."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return Outcome(
            "left out: compute-sanitizer, which comes with the CUDA toolkit, is not on the PATH", left_out=True
        )
    lines, failures = list[Line](), list[str]()
    for tool, what in TOOLS.items():
        with TemporaryDirectory() as out:
            command = [
                program,
                "--tool",
                tool,
                "--target-processes",
                "all",
                "--error-exitcode",
                str(FOUND),
                sys.executable,
            ]
            command += [str(script), str(bundle), "--only", "parity", "--out", out, "--prompt", str(PROMPT)]
            command += ["--allow-ptx"] if settings.allow_ptx else []
            ran = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        if ran.returncode:
            tail = "\n".join(ran.stdout.splitlines()[-TAIL:])
            failures.append(f"{tool} ended with exit code {ran.returncode}:\n{tail}")
        lines.append(
            {"tool": tool, "looks for": what, "found": "nothing" if not ran.returncode else "see the failures"}
        )
    return Outcome(f"{' and '.join(TOOLS)} over every kernel of {bundle.name}", failures, {"compute-sanitizer": lines})
