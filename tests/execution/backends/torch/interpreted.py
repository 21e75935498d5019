"""Triton's interpreter, where it would differ from a device.

It makes whole numbers of arrays of one element, which numpy 2.4 and later refuse; here they are taken out first, so
that loop bounds may be computed or loaded. And it multiplies blocks by numpy, whose library sums a row otherwise at
another place of the block on some processors (those without AVX-512), which no device does; here each row is
multiplied by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor
_multiply = interpreter.InterpreterBuilder.create_dot


def _patch_with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def _multiply_rows(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
    """a […, M, K], b […, K, N]. Codes of fp8 it turns into numbers first; their sums are not looked at to the bit."""
    if 8 in (a.dtype.primitive_bitwidth, b.dtype.primitive_bitwidth):
        return _multiply(self, a, b, d, *how)
    rows = np.matmul(a.data[..., :, None, :], b.data[..., None, :, :], dtype=d.data.dtype)[..., 0, :]
    return interpreter.TensorHandle(rows + d.data, d.dtype.scalar)


def mend_interpreter() -> None:
    interpreter._patch_lang_tensor = _patch_with_index
    interpreter.InterpreterBuilder.create_dot = _multiply_rows
