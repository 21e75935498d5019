"""Triton's interpreter with loop bounds that were computed or loaded.

It makes whole numbers of arrays of one element, which numpy 2.4 and later refuse; here they are taken out first.
"""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def accept_computed_bounds() -> None:
    interpreter._patch_lang_tensor = _patch_with_index
