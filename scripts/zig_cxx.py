"""Zig as a C++ compiler that is called like GCC: CXX="python scripts/zig_cxx.py x86_64-linux-gnu.2.28".

Zig, which the package `ziglang` has, compiles for any processor and any glibc. It names processors in its own way, and
cannot answer -dumpmachine for a target with a glibc.
"""

import os
import sys
from importlib.resources import files

PROCESSORS = {
    "-march=x86-64-v3": "-mcpu=x86_64_v3",
    "-march=x86-64-v4": "-mcpu=x86_64_v4",
    "-march=armv8.2-a+dotprod+fp16": "-mcpu=generic+v8_2a+dotprod+fullfp16",
}


def main(target: str, *arguments: str) -> None:
    if arguments == ("-dumpmachine",):
        print(target.partition(".")[0])
        return
    if strange := [word for word in arguments if word.startswith("-march=") and word not in PROCESSORS]:
        sys.exit(f"scripts/zig_cxx.py doesn't know what Zig calls {strange[0]}: add it to PROCESSORS")
    zig = str(files("ziglang") / "zig")
    strip = ["-s"] if "-shared" in arguments else []  # Zig's C++ library comes with megabytes for debuggers
    os.execv(zig, [zig, "c++", "-target", target, *strip, *(PROCESSORS.get(word, word) for word in arguments)])


if __name__ == "__main__":
    main(*sys.argv[1:])
