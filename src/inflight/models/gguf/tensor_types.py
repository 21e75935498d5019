"""The types of tensors in a GGUF file: their numbers, names, and how many bytes hold how many values (`ggml.h`)."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class TensorType(Struct, frozen=True):
    """`values` weights, neighbours along a row, lie in a block of `nbytes` bytes."""

    name: str
    values: int
    nbytes: int

    @property
    def is_plain(self) -> bool:
        """Whether each value stands for itself, without others of its block."""
        return self.values == 1

    @property
    def held_bytes(self) -> float:
        """Bytes of a weight in a matrix as this engine packs it (`execution.checkpoints.gguf.packing`): 4 or 8 bits,
        its share of a scale of two bytes, and of an offset where the type has some; or plain."""
        if self.is_plain:
            return 2
        held = _HELD.get(self.name, _Held(8, 32))
        return held.bits / 8 + (2 if held.offsets else 1) * 2 / held.group


class _Held(NamedTuple):
    """Bits of a weight, inputs of a group, and whether groups have offsets."""

    bits: int
    group: int
    offsets: bool = False


_HELD = {
    **dict.fromkeys(("Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4"), _Held(4, 32)),
    **dict.fromkeys(("Q4_1", "Q4_K"), _Held(4, 32, offsets=True)),
    **dict.fromkeys(("Q5_1", "Q5_K"), _Held(8, 32, offsets=True)),
    "Q2_K": _Held(4, 16, offsets=True),
    "Q3_K": _Held(4, 16),
    "Q6_K": _Held(8, 16),
}
_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}


def tensor_type(number: int) -> TensorType | None:
    """Return the type of a number; None for a number that no type has, or none any more."""
    return _TYPES.get(number)
