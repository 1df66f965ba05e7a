# pyright: basic, reportAssignmentType=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
"""y = x @ W for weights in the Marlin int4 layout, which docs/format.md describes.

The weights are the left operand, y^T = W^T x^T, so that a tensor core multiplies 16 columns of W with only 8 rows of x.
Within a tile the columns are numbered in the order in which the words hold them: the 16 bytes that a lane loads are
then its four fragments of mma.m16n8k16, nothing is exchanged between lanes, and only the addresses of scale and y know
the true column. The order needs one warp per 64 columns, or half as many.

q - 8 comes without a conversion from integers: a code is put into the mantissa of a power of two, which is subtracted
again; zero points are put there in the same way. All of this is exact.

128 weights along K share a scale and a zero point. They are a group: 8 lines of words, 16 weights along K each.
"""

import triton
import triton.language as tl

STAGES = tl.constexpr(3)  # groups of a program in flight: two arrive while one is multiplied


@triton.jit
def _zero_points(zeros, EIGHT: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr):
    """What `_pair` subtracts from codes in the mantissa of BITS, a power of two: zero points in the same place, dtype
    [1, 2 * TILE, 1], or EIGHT if there are none."""
    if zeros is None:
        return EIGHT
    else:
        integers: tl.constexpr = tl.int32 if dtype == tl.float32 else tl.int16
        return (zeros.to(integers) | BITS).to(dtype, bitcast=True)[:, :, None]


@triton.jit
def _pair(words, BIT: tl.constexpr, R, zeros, dtype: tl.constexpr):  # -> dtype [..., 2]
    """q - zero of the nibbles that begin at BIT and BIT + 16: neighbours along K. `zeros` [1, 2 * TILE]: of the words'
    columns, or None: all are 8."""
    if dtype == tl.float32:
        low = ((words >> BIT) & 0xF) | 0x4B000000  # 2**23 + q
        high = ((words >> (BIT + 16)) & 0xF) | 0x4B000000
        pair = tl.join(low, high).to(tl.float32, bitcast=True)
        return pair - _zero_points(zeros, 8388616.0, 0x4B000000, dtype)
    else:
        # R is positive, so these are 0 and 1. The compiler does not know it, and so takes one instruction to mask a
        # code and set the exponent, and one for both subtractions: 1.5 per weight in all instead of 2.0.
        zero = R >> 31
        one = (zero + 1).to(tl.float32).to(dtype)
        # A float16 holds codes that were not shifted, too. Zero points would then take twice the registers.
        SHIFTED: tl.constexpr = BIT // 8 * 8 if dtype == tl.float16 and zeros is None else BIT
        POWER: tl.constexpr = 0x6400 if dtype == tl.float16 else 0x4300
        mask: tl.constexpr = 0x000F000F << (BIT - SHIFTED)
        words = (words >> SHIFTED) & mask | (POWER * 0x10001 + zero)  # 1024 + q, or 1024 + 16 q; 128 + q
        pair = tl.join((words & 0xFFFF).to(tl.int16), (words >> 16).to(tl.int16)).to(dtype, bitcast=True)
        if SHIFTED != BIT:
            return pair * 0.0625 - 72.0
        else:
            return pair * one - _zero_points(zeros, 1032.0 if dtype == tl.float16 else 136.0, POWER, dtype)


@triton.jit
def _codes(
    words, R, zeros, COUNT: tl.constexpr, TILE: tl.constexpr, dtype: tl.constexpr
):  # -> dtype [TILE, 16 * COUNT]
    """q - zero of COUNT lines of a tile's words, int32 [COUNT, 2 * TILE]; columns in the tile's order. `zeros` is what
    `_load_zeros` gives, or None: all are 8."""
    low = None if zeros is None else zeros & 0xFF
    high = None if zeros is None else zeros >> 8
    even = tl.join(_pair(words, 0, R, low, dtype), _pair(words, 4, R, low, dtype))
    odd = tl.join(_pair(words, 8, R, high, dtype), _pair(words, 12, R, high, dtype))
    codes = tl.reshape(tl.join(even, odd), (COUNT, TILE // 64, 8, 4, 4, 2, 2, 2))  # line block g t j p2 p0 p1
    return tl.reshape(tl.permute(codes, (4, 1, 7, 2, 0, 6, 3, 5)), (TILE, 16 * COUNT))  # j block p1 g | line p0 t p2


@triton.jit
def _load_zeros(zero, TILE: tl.constexpr):  # -> int16 [1, 2 * TILE]
    """For every word of a line the zero points of its two columns, that of p1 = 1 in the high byte: they are stored
    side by side."""
    word = tl.arange(0, 2 * TILE)
    at = word // 128 * 32 + word // 16 % 8 * 4 + word % 4
    return tl.load(zero.to(tl.pointer_type(tl.int16), bitcast=True) + at)[None, :]


@triton.jit
def _scales(scale, TILE: tl.constexpr):  # -> float32 [TILE], columns in the tile's order
    stored = tl.load(scale + tl.arange(0, TILE)).to(tl.float32)
    blocks = tl.reshape(stored, (TILE // 64, 8, 4, 2))  # block g j p1
    return tl.reshape(tl.permute(blocks, (2, 0, 3, 1)), (TILE,))


@triton.jit
def _columns(TILE: tl.constexpr):  # -> int32 [TILE], the columns of W in the tile's order
    label = tl.arange(0, TILE)
    block = label // 16 % (TILE // 64)
    return tl.program_id(0) * TILE + 64 * block + label // (TILE // 4) * 16 + label % 16


@triton.jit
def _load_x(x, column, K: tl.constexpr):
    """x has K columns, the weights are padded to whole groups: what lies behind them may be NaN, times 0 or not."""
    if K % 128 == 0:
        return tl.load(x)
    else:
        return tl.load(x, mask=(column < K)[:, None], other=0.0)


@triton.jit
def _product(
    x, q, scale, zero, R, row, first, last, K: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, MMA: tl.constexpr
):  # -> float32 [TILE, rows]
    """Groups first .. last - 1 of W^T x^T, for the tile of program_id(0). Rows from R on are those of row R - 1.

    Tensor cores multiply 16-bit numbers, on targets with MMA. Of float32 they would keep 10 bits of the fraction."""
    DTYPE: tl.constexpr = x.dtype.element_ty
    TENSOR: tl.constexpr = MMA and tl.float32 != DTYPE
    tl.static_assert(WIDTH % TILE == 0, "a tile must not reach beyond the padded columns")
    line = tl.arange(0, 8 if TENSOR else 1)
    k = tl.arange(0, 128 if TENSOR else 16)
    words_at = q + line[:, None] * (2 * WIDTH) + tl.program_id(0) * (2 * TILE) + tl.arange(0, 2 * TILE)[None, :]
    x_at = x + tl.minimum(row, R - 1)[None, :] * K + k[:, None]
    scale_at = scale + tl.program_id(0) * TILE
    zero_at = None if zero is None else zero + tl.program_id(0) * TILE
    total = tl.zeros((TILE, row.shape[0]), tl.float32)
    for group in tl.range(first, last, num_stages=STAGES if TENSOR else 1):
        zeros = None if zero is None else _load_zeros(zero_at + group * WIDTH, TILE)
        if TENSOR:
            words = tl.load(words_at + group * 8 * (2 * WIDTH), eviction_policy="evict_first")
            codes = _codes(words, R, zeros, 8, TILE, DTYPE)
            part = tl.dot(codes, _load_x(x_at + group * 128, group * 128 + k, K))
        else:
            part = tl.zeros((TILE, row.shape[0]), tl.float32)
            for step in tl.range(8, num_stages=1):
                number = group * 8 + step
                words = tl.load(words_at + number * (2 * WIDTH), eviction_policy="evict_first")
                codes = _codes(words, R, zeros, 1, TILE, tl.float32)
                values = _load_x(x_at + number * 16, number * 16 + k, K).to(tl.float32)
                part = tl.dot(codes, values, part, input_precision="ieee")
        total += part * _scales(scale_at + group * WIDTH, TILE)[:, None]
    return total


@triton.jit
def linear_int4_decode(
    x, q, scale, zero, y, R, K: tl.constexpr, N: tl.constexpr, PLANES: tl.constexpr, TILE: tl.constexpr,
    MMA: tl.constexpr,
):  # fmt: skip
    """One of PLANES sums over K, for TILE columns and 8 rows. Grid (N' / TILE, PLANES, ceil(R / 8)).

    x [R, K]; q int32 [K' / 16, 2 * N'], scale and zero [K' / 128, N'] with K', N' = K, N rounded up to 128, 64. Scales
    are of any float dtype; zero is int8, 0 .. 16, or None: all are 8.
    y float32 [PLANES, R, N], whose sum over the planes is x @ W. A plane without groups is 0. TILE is 64, 128 or 256.
    """
    GROUPS: tl.constexpr = (K + 127) // 128
    EACH: tl.constexpr = (GROUPS + PLANES - 1) // PLANES
    plane = tl.program_id(1)
    row = tl.program_id(2) * 8 + tl.arange(0, 8)
    first = plane * EACH
    last = first + EACH
    if GROUPS % PLANES:
        last = tl.minimum(last, GROUPS)
    WIDTH: tl.constexpr = (N + 63) // 64 * 64
    total = _product(x, q, scale, zero, R, row, first, last, K, WIDTH, TILE, MMA)
    column = _columns(TILE)
    mask = (row < R)[None, :]
    if N % 64:
        mask = mask & (column < N)[:, None]
    tl.store(y + (plane * R + row)[None, :] * N + column[:, None], total, mask=mask)


@triton.jit
def linear_int4_prefill(
    x, q, scale, zero, bias, y, R, K: tl.constexpr, N: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    MMA: tl.constexpr,
):  # fmt: skip
    """TILE_M rows and TILE_N columns of y = x @ W (+ bias), in y's dtype. Grid (N' / TILE_N, ceil(R / TILE_M)).

    Operands as in linear_int4_decode; bias [N] or None, y [R, N]. TILE_N is 64, 128 or 256.
    """
    WIDTH: tl.constexpr = (N + 63) // 64 * 64
    row = tl.program_id(1) * TILE_M + tl.arange(0, TILE_M)
    total = _product(x, q, scale, zero, R, row, 0, (K + 127) // 128, K, WIDTH, TILE_N, MMA)
    column = _columns(TILE_N)
    mask = (row < R)[None, :]
    if N % 64:
        mask = mask & (column < N)[:, None]
    if bias is not None:
        if N % 64:
            total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[:, None]
        else:
            total += tl.load(bias + column).to(tl.float32)[:, None]
    tl.store(y + row[None, :] * N + column[:, None], total, mask=mask)
