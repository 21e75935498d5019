"""Begins a step on the device, in one kernel: new blocks enter the tables, tokens are looked up.

One launch for both, since a step begins hundreds of times a second.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.tensors import PassTensors

ENTRIES = 128  # blocks, and tokens, of one program


def begin(appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
    blocks, count = len(appended), pass_.num_tokens
    group, slot, _ = pass_.block_tables.stride()
    _begin[(triton.cdiv(max(blocks, count), ENTRIES),)](
        appended,
        pass_.block_tables,
        tokens,
        pass_.rows,
        pass_.chunk_of,
        pass_.positions,
        pass_.token_ids,
        blocks,
        count,
        group,
        slot,
        tokens.stride(0),
        ENTRIES,
    )


@triton.jit(do_not_specialize=["blocks", "count"])  # which differ from step to step
def _begin(
    appended,
    block_tables,
    tokens,
    rows,
    chunk_of,
    positions,
    token_ids,
    blocks,
    count,
    group_stride,
    slot_stride,
    token_stride,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry, new = appended + 4 * place, place < blocks
    group = tl.load(entry, mask=new, other=0).to(tl.int64)
    slot = tl.load(entry + 1, mask=new, other=0)
    at = group * group_stride + slot * slot_stride + tl.load(entry + 2, mask=new, other=0)
    tl.store(block_tables + at, tl.load(entry + 3, mask=new), mask=new)

    inside = place < count
    row = tl.load(rows + tl.load(chunk_of + place, mask=inside, other=0), mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + place, mask=inside, other=0)
    token = tl.load(tokens + row * token_stride + position, mask=inside)
    tl.store(token_ids + place, token, mask=inside)
