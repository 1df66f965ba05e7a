"""Two small Triton kernels, compiled ahead of time in a process of its own: python trivial_kernels.py FOLDER 80 120

Writes FOLDER/scale_0123abcd.80.cubin, .ptx and so on. The facts that tests compare with are those of KERNELS."""

import os
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def scale(x, y, R, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < R * N).to(tl.float32) * 2, mask=at < R * N)


@triton.jit
def product(x, w, n, R, y, K: tl.constexpr):
    """A scalar between pointers, so that natural alignment shows; tensor cores and shared memory."""
    i, j, k = tl.arange(0, 16)[:, None], tl.arange(0, 64)[None, :], tl.arange(0, K)
    sums = tl.dot(tl.load(x + i * K + k[None, :], mask=i < R), tl.load(w + k[:, None] * 64 + j))
    tl.store(y + i * 64 + j, sums + tl.load(n), mask=i < R)


# function -> (run-time arguments, constants, warps)
KERNELS = {
    scale: ({"x": "*bf16", "y": "*fp32", "R": "i32"}, {"N": 7, "BLOCK": 512}, 4),
    product: ({"x": "*bf16", "w": "*bf16", "n": "*i64", "R": "i32", "y": "*fp32"}, {"K": 128}, 2),
}


def compile_all(folder: Path, architectures: list[int]) -> None:
    for sm in architectures:
        for fn, (types, constants, warps) in KERNELS.items():
            name = f"{fn.__name__}_0123abcd"
            fn._repr = lambda _, name=name: name
            order = {argument: index for index, argument in enumerate(fn.arg_names)}
            source = ASTSource(
                fn,
                {argument: types.get(argument, "constexpr") for argument in order},
                constexprs={(order[argument],): value for argument, value in constants.items()},
                attrs={(order[a],): [["tt.divisibility", 16]] for a, kind in types.items() if kind.startswith("*")},
            )
            options = {"num_warps": warps, "num_stages": 2}
            made = triton.compile(source, target=GPUTarget("cuda", sm, 32), options=options)
            (folder / f"{name}.{sm}.cubin").write_bytes(made.asm["cubin"])
            (folder / f"{name}.{sm}.ptx").write_text(made.asm["ptx"], encoding="ascii")


if __name__ == "__main__":
    assert "TRITON_INTERPRET" not in os.environ
    compile_all(Path(sys.argv[1]), [int(sm) for sm in sys.argv[2:]])
