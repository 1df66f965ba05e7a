"""What stands before and behind the layers: rows, counts of consumed tokens, embeddings, the choice of a row.

A row is (token, slot, position). Padding rows sit on the slot SCRATCH with token 0 at position 0. `counts` is
int16 [slots + 1, V]: bit 15 says that the id is in the prompt, bits 0..14 how often it was consumed as output.
"""

# pyright: basic

import triton
import triton.language as tl

from qpack_packager.cuda.kernels import norm


@triton.jit
def begin_decode(
    slots, slot_token, slot_position, counts, table, scale, weight, positions, h, x,
    SCRATCH: tl.constexpr, V: tl.constexpr, H: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each row continues its slot: positions [R] = slot_position[slot], its token is counted, h [R, H] is its line of
    the table as in `embed`, and x = norm(h) * weight. Slots must be distinct, SCRATCH aside, whose seat is neither read
    nor counted. Grid (R,)."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    live = slot != SCRATCH
    token = tl.load(slot_token + slot, mask=live, other=0)
    position = tl.load(slot_position + slot, mask=live, other=0)
    tl.store(positions + row, position)
    if live:
        count = counts + slot.to(tl.int64) * V
        if position == 0:
            for first in range(0, V, BLOCK):  # reset and count in one store: nothing is read that was just written
                ids = first + tl.arange(0, BLOCK)
                tl.store(count + ids, (ids == token).to(tl.int16), mask=ids < V)
        else:
            old = tl.load(count + token).to(tl.int32)
            tl.store(count + token, (old + 1).to(tl.int16), mask=(old & 0x7FFF) < 0x7FFF)
    embed(row, token, table, scale, weight, h, x, H, EPS, UNIT, BLOCK)


@triton.jit
def embed_norm(
    tokens, table, scale, weight, h, x, H: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    """h [R, H] = the tokens' lines of the table as in `embed`, x = norm(h) * weight. Grid (R,)."""
    row = tl.program_id(0)
    embed(row, tl.load(tokens + row), table, scale, weight, h, x, H, EPS, UNIT, BLOCK)


@triton.jit
def embed(
    row, token, table, scale, weight, h, x, H: tl.constexpr, EPS: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr
):
    """Row `row` of h and x; BLOCK is H rounded up to a power of two. With scale [V, H' / 128], H' being H rounded up
    to 128, table is int8 [V, H'] and a line is codes times scales; without (None) it is a line of table [V, H]."""
    columns = tl.arange(0, BLOCK)
    mask = columns < H
    if scale is None:
        line = tl.load(table + token.to(tl.int64) * H + columns, mask=mask, other=0.0)
    else:
        GROUPS: tl.constexpr = (H + 127) // 128
        codes = tl.load(table + token.to(tl.int64) * (128 * GROUPS) + columns, mask=mask, other=0)
        steps = tl.load(scale + token.to(tl.int64) * GROUPS + columns // 128, mask=mask, other=0.0)
        line = codes.to(tl.float32) * steps.to(tl.float32)
    embedded = line.to(h.dtype.element_ty)
    tl.store(h + row * H + columns, embedded, mask=mask)
    normed = norm.normalize(embedded.to(tl.float32), weight, columns, mask, H, EPS, UNIT)
    tl.store(x + row * H + columns, normed.to(x.dtype.element_ty), mask=mask)


@triton.jit
def counts_reset(slot, start, counts, V: tl.constexpr, BLOCK: tl.constexpr):
    """A prompt that starts at position 0 starts with no counts. Grid (ceil(V / BLOCK),)."""
    if tl.load(start) == 0:
        ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        count = counts + tl.load(slot).to(tl.int64) * V
        tl.store(count + ids, tl.zeros((BLOCK,), tl.int16), mask=ids < V)


@triton.jit
def rows_prefill(
    prompt, slot, start, length, counts, tokens, slots, positions, last, R,
    SCRATCH: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first length[0] rows are prompt [R] from position start[0] on, in slot[0]; the others are padding.
    last [1] = length - 1. The tokens' prompt bits are set, behind `counts_reset`; rows with the same token store the
    same bits. What lies in `prompt` behind the length is not read. Grid (ceil(R / BLOCK),)."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (rows < tl.load(length)) & (rows < R)
    seat = tl.load(slot)
    token = tl.load(prompt + rows, mask=live, other=0)
    tl.store(tokens + rows, token, mask=rows < R)
    tl.store(slots + rows, tl.where(live, seat, SCRATCH), mask=rows < R)
    tl.store(positions + rows, tl.where(live, tl.load(start) + rows, 0), mask=rows < R)
    tl.store(last, tl.load(length) - 1)
    count = counts + seat.to(tl.int64) * V + token
    tl.store(count, tl.load(count, mask=live, other=0) | -0x8000, mask=live)


@triton.jit
def take_rows(x, rows, y, H: tl.constexpr, BLOCK: tl.constexpr):
    """y [1, H] = x[rows[0]]; BLOCK is H rounded up to a power of two. Grid (1,)."""
    columns = tl.arange(0, BLOCK)
    mask = columns < H
    tl.store(y + columns, tl.load(x + tl.load(rows) * H + columns, mask=mask), mask=mask)
