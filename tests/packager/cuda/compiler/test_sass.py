"""Facts from machine code: counted by hand in small listings, and in kernels whose loads and products are known."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from qpack_packager.cuda.compiler.sass import Loop, _parse, read_machine_code
from qpack_packager.cuda.compiler.worker import compile_kernel, prepare
from qpack_packager.cuda.spec import KernelSpec
from qpack_packager.cuda.targets import Target

LISTING = """
kernel_1234abcd:
.text.kernel_1234abcd:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/                   LDGSTS.E.BYPASS.128 [R9], [R2.64] ;
.L_x_2:
        /*0020*/                   LDG.E.128.CONSTANT R4, [R2.64] ;
.L_x_0:
        /*0030*/              @!P0 LDG.E.U16 R8, [R2.64+0x40] ;
        /*0040*/                   HMMA.16816.F32.BF16 R84, R84, R68, RZ ;
        /*0050*/                   HMMA.16816.F32.BF16 R84, R44, R70, R84 ;
        /*0060*/                   LOP3.LUT R6, R4, R2, RZ, 0xfc, !PT ;
        /*0070*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
        /*0080*/                   HMMA.1688.F32.TF32 R84, R84, R68, RZ ;
        /*0090*/                   NOP ;
        /*00a0*/              @UP1 BRA `(.L_x_1) ;
        /*00b0*/                   IADD3 R2, R2, 0x10, RZ ;
        /*00c0*/               @P2 BRA `(.L_x_2) ;
        /*00d0*/              @!P3 BRA `(.L_x_3) ;
        /*00e0*/                   STG.E.64 [R2.64], R4 ;
        /*00f0*/                   STG.E [R2.64], R4 ;
.L_x_3:
        /*0100*/                   EXIT ;
.L_x_4:
        /*0110*/                   BRA `(.L_x_4);
        /*0120*/                   NOP;
"""


def test_a_listing_is_counted_as_by_hand():
    code = _parse(LISTING)
    assert code.instructions == 17
    assert code.tensor == 3
    assert code.loads == {128: 2, 16: 1}
    assert code.stores == {64: 1, 32: 1}


def test_the_loop_is_the_innermost_and_of_those_beside_each_other_the_one_that_multiplies_most():
    code = _parse(LISTING)
    assert code.loop is not None
    assert code.loop == Loop(instructions=5, tensor=2, multiply_adds=2 * 16 * 8 * 16)
    # 5 instructions of 32 threads for 2 fragments of 16 x 16 weights
    assert code.loop.instructions_per_weight(rows=8) == 5 * 32 / 512


@pytest.mark.parametrize(
    ("operation", "multiply_adds"),
    [
        ("HMMA.16816.F32", 16 * 8 * 16),
        ("HMMA.1688.F32.TF32", 16 * 8 * 8),
        ("HMMA.1684.F32.TF32", 16 * 8 * 4),
        ("HGMMA.64x8x16.F32.BF16", 64 * 8 * 16 // 4),
        ("HGMMA.64x256x16.F32", 64 * 256 * 16 // 4),
        ("UTCHMMA", None),
    ],
)
def test_multiply_adds_are_those_of_one_warp(operation: str, multiply_adds: int | None):
    loop = _parse(f".L_x_0:\n  /*0000*/  {operation} R84, R84, R68, RZ ;\n  /*0010*/  @P1 BRA `(.L_x_0) ;\n").loop
    assert loop is not None
    assert loop == Loop(2, 1, multiply_adds)
    assert (loop.instructions_per_weight(8) is None) == (multiply_adds is None)


def test_a_loop_without_products_is_none():
    code = _parse(".L_x_0:\n  /*0000*/  FFMA R1, R2, R3, R4 ;\n  /*0010*/  @P1 BRA `(.L_x_0) ;\n")
    assert (code.instructions, code.tensor, code.loop) == (2, 0, None)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory):
    scratch = tmp_path_factory.mktemp("scratch")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as pool:
        yield lambda spec, sm: read_machine_code(
            pool.submit(compile_kernel, spec, Target(sm), "sample_kernels", scratch).result().image
        )


@pytest.mark.parametrize("sm", [80, 89, 90, 120])
@pytest.mark.parametrize(("kind", "width"), [("*fp32", 128), ("*bf16", 64)])
def test_pointers_are_taken_for_aligned_so_that_four_neighbours_are_one_access(read, sm: int, kind: str, width: int):
    spec = KernelSpec("samples.double", (("x", kind), ("y", kind)), (("BLOCK", 128),), warps=1)
    code = read(spec, sm)
    assert (code.loads, code.stores) == ({width: 1}, {width: 1})
    assert (code.tensor, code.loop) == (0, None)


@pytest.mark.parametrize(("sm", "tensor"), [(80, 8), (89, 8), (90, 4), (120, 8)])
def test_the_loop_of_a_product_holds_the_multiply_adds_of_its_tile(read, sm: int, tensor: int):
    """64 rows x 16 columns x 64 of K on 4 warps: 16 x 16 x 64 a warp, by mma.m16n8k16 or wgmma.m64n16k16."""
    types = (("x", "*bf16"), ("w", "*bf16"), ("y", "*fp32"))
    spec = KernelSpec("samples.product", types, (("K", 2**16), ("TILE", 64)), warps=4, stages=3)
    loop = read(spec, sm).loop
    assert loop.multiply_adds % (16 * 16 * 64) == 0
    passes = loop.multiply_adds // (16 * 16 * 64)
    assert loop.tensor == passes * tensor
    assert loop.instructions > loop.tensor
