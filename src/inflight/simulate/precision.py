"""What weights, keys and values are held in on a GPU, and the bytes that makes.

Quantized checkpoints keep tables and head in bf16, and so does this. int4 is of weights alone, in groups of 32 inputs
with a scale of two bytes, and computed in bf16.
"""

from __future__ import annotations

from typing import Literal

from inflight.models.arithmetic import Packing

Precision = Literal["bf16", "fp8", "int8", "int4"]
ITEM_BYTES: dict[Precision, float] = {"bf16": 2, "fp8": 1, "int8": 1, "int4": 0.5 + 2 / 32}


def packing(precision: Precision) -> Packing:
    item, bf16 = ITEM_BYTES[precision], ITEM_BYTES["bf16"]
    return Packing(matrix=item, head=bf16, table=bf16, other=item)
