"""Codes of 4 and 8 bits as the whole numbers that they mean, in `act`: for kernels to call on a tile of bytes.

A product that reads its weights in 4 bits at a GPU's bandwidth has some three instructions for each, and conversions
from whole numbers are slow. So codes become the lowest bits of a number whose others are known (128 in bfloat16, 1024
in float16), which is then taken off; of MXFP4 sign, exponent and mantissa are put where bfloat16 has them, and its
exponent's zero is moved by a product. In bfloat16 two are widened at a time, which takes PTX (the ISA has the names:
Parallel Thread Execution, "prmt", "lop3", "fma").
"""

from __future__ import annotations

import triton
import triton.language as tl

from inflight.execution.backends.torch.weights import GroupedMatrix

# Of four bytes the codes in low halves, as two registers of two bfloat16 numbers: bytes are put into 16 bits each
# (prmt), all but the code is made 128's bits (lop3: a & b | c), and code + 128 becomes code + 128 - 136 (fma). {shift}
# is 0 or 4 for the half, {least} the bits of -136, or of -128 where codes mean from 0 to 15.
_LINEAR = """
{{
    .reg .b32 a, b, least, one;
    mov.b32 least, {least};
    mov.b32 one, 0x3f803f80;
    prmt.b32 a, $2, 0, 0x4140;
    prmt.b32 b, $2, 0, 0x4342;
    shr.b32 a, a, {shift};
    shr.b32 b, b, {shift};
    lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, a, one, least;
    fma.rn.bf16x2 $1, b, one, least;
}}
"""
# The same of MXFP4's codes, of which the table has twice the value: a sign, two bits of exponent from 2⁰ on (0: none),
# one of mantissa. In bfloat16's places that is 2⁻¹²⁶ of it: times 2¹²⁷.
_E2M1 = """
{{
    .reg .b32 a, b, s, t, factor, zero;
    mov.b32 factor, 0x7f007f00;
    mov.b32 zero, 0x80008000;
    prmt.b32 a, $2, 0, 0x4140;
    prmt.b32 b, $2, 0, 0x4342;
    shl.b32 s, a, {sign};
    shl.b32 t, b, {sign};
    shl.b32 a, a, {number};
    shl.b32 b, b, {number};
    and.b32 a, a, 0x01c001c0;
    and.b32 b, b, 0x01c001c0;
    lop3.b32 a, s, 0x80008000, a, 0xea;
    lop3.b32 b, t, 0x80008000, b, 0xea;
    fma.rn.bf16x2 $0, a, factor, zero;
    fma.rn.bf16x2 $1, b, factor, zero;
}}
"""
_SIGNED_LOW = tl.constexpr(_LINEAR.format(shift=0, least="0xc308c308"))
_SIGNED_HIGH = tl.constexpr(_LINEAR.format(shift=4, least="0xc308c308"))
_UNSIGNED_LOW = tl.constexpr(_LINEAR.format(shift=0, least="0xc300c300"))
_UNSIGNED_HIGH = tl.constexpr(_LINEAR.format(shift=4, least="0xc300c300"))
_E2M1_LOW = tl.constexpr(_E2M1.format(sign=12, number=6))
_E2M1_HIGH = tl.constexpr(_E2M1.format(sign=8, number=2))


def coding_of(matrix: GroupedMatrix) -> str:
    """Return the meaning of its codes, as the CODING of `widened`."""
    if matrix.bits == 8:
        return "whole"
    if matrix.meanings is not None:
        return "e2m1" if matrix.is_e2m1 else "table"
    return "signed" if matrix.offsets is None else "unsigned"


@triton.constexpr_function
def halves_of(coding: str) -> int:
    """Return how many codes a byte has."""
    return 1 if coding == "whole" else 2


@triton.jit
def widened(codes, meanings, CODING: tl.constexpr, HIGH: tl.constexpr, KIND: tl.constexpr):
    """Bytes → what they mean, or their low or high halves, in `act`.

    CODING: "whole" int8; of halves "signed" from -8 to 7, "unsigned" from 0 to 15, "e2m1" MXFP4's, "table" meanings
    act[16]."""
    if CODING == "whole":
        return codes.to(KIND)
    elif CODING == "table" or (CODING == "e2m1" and tl.bfloat16 != KIND):
        return tl.load(meanings + (codes >> 4 if HIGH else codes & 15).to(tl.int32))
    elif tl.bfloat16 != KIND:
        return _by_arithmetic(codes >> 4 if HIGH else codes & 15, 8 if CODING == "signed" else 0, KIND)
    elif CODING == "e2m1":
        return _by_ptx(codes, _E2M1_HIGH if HIGH else _E2M1_LOW)
    elif CODING == "signed":
        return _by_ptx(codes, _SIGNED_HIGH if HIGH else _SIGNED_LOW)
    else:
        return _by_ptx(codes, _UNSIGNED_HIGH if HIGH else _UNSIGNED_LOW)


@triton.jit
def _by_arithmetic(codes, MIN_CODE: tl.constexpr, KIND: tl.constexpr):
    if tl.float16 == KIND:
        return (codes.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + MIN_CODE)
    else:
        return codes.to(tl.float32) - MIN_CODE


@triton.jit
def _by_ptx(codes, PTX: tl.constexpr):
    return tl.inline_asm_elementwise(PTX, "=r,=r,r", [codes], dtype=tl.bfloat16, is_pure=True, pack=4)
