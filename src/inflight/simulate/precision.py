"""What weights, keys and values are held in on a GPU, and the bytes that makes.

Quantized checkpoints keep tables and head in bf16, and so does this.
"""

from __future__ import annotations

from typing import Literal

from inflight.models.arithmetic import Packing

Precision = Literal["bf16", "fp8", "int8"]
ITEM_BYTES: dict[Precision, int] = {"bf16": 2, "fp8": 1, "int8": 1}


def packing(precision: Precision) -> Packing:
    item, bf16 = ITEM_BYTES[precision], ITEM_BYTES["bf16"]
    return Packing(matrix=item, head=bf16, table=bf16, other=item)
