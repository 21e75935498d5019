"""Begins a step on the device: new blocks enter the tables, and the tokens are looked up.

Knows the slots' tables and tokens; the step that is to be computed is in `PassTensors`.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.tensors import PassTensors


def begin(appended: Tensor, tokens: Tensor, pass_: PassTensors) -> None:
    """Append blocks and look up the pass's tokens. appended int32[N, 4]: group, slot, place in its table and number of
    a block. tokens int32[slots, any length]."""
    group, slot, place, block = appended.unbind(dim=1)
    pass_.block_tables[group, slot, place] = block
    pass_.token_ids.copy_(tokens[pass_.rows[pass_.chunk_of], pass_.positions])
