"""Hatchling's build hook: the manual pages and the library of the CPU kernels go into each wheel; for an editable
install the library goes into the checkout. Without a compiler that can make it, qpack is installed without it, unless
QPACK_REQUIRE_CPU is 1."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "qpack_runtime/cpu/libqpack_cpu.so"


class CpuLibrary(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "editable", or "standard" for a wheel that holds everything."""
        self.work = TemporaryDirectory(prefix="qpack-wheel-")
        editable = version == "editable"
        if not editable:
            pages = Path(self.work.name, "man")
            pages.mkdir()
            subprocess.run([sys.executable, str(Path(self.root, "scripts", "make_man.py")), str(pages)], check=True)
            build_data["shared_data"][str(pages)] = "share/man/man1"
        library = Path(self.root, "runtime", LIBRARY) if editable else Path(self.work.name, "library.so")
        command = [sys.executable, str(Path(self.root, "scripts", "build_cpu.py")), "--output", str(library)]
        made = subprocess.run(command, check=False, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
        if made.returncode:
            if os.environ.get("QPACK_REQUIRE_CPU", "0") not in ("", "0"):
                self.app.abort(f"The CPU library could not be made, and QPACK_REQUIRE_CPU asks for it: {made.stderr}")
            self.app.display_warning(f"qpack is installed without its CPU library: {made.stderr}")
            return
        sys.stderr.write(made.stderr)  # the compiler's warnings
        if not editable:
            build_data["force_include"][str(library)] = LIBRARY
            build_data["pure_python"] = False
            # Any Python 3, since ctypes loads it. _PYTHON_HOST_PLATFORM, which sysconfig reads, names another host.
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.work.cleanup()
