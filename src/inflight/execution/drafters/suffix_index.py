"""The interface of an index over token ids, for the suffix drafter; the compiled one, or its reference in Python.

What each operation does is documented in `suffix_reference`; how it is made fast, in the repository's `native/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from inflight.compiled import module
from inflight.execution.drafters.suffix_reference import ReferenceIndex


class SuffixIndex(Protocol):
    def __len__(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def append(self, token_ids: Sequence[int], /) -> None: ...
    def end_text(self) -> None: ...
    def drop_text(self) -> int: ...
    def propose(self, others: Self | None, most: int) -> tuple[tuple[int, ...], tuple[float, ...]]: ...


class IndexKind(Protocol):
    """Makes empty ones. An index takes bytes_alone at most, and bytes_per_token for each token in it."""

    bytes_alone: int
    bytes_per_token: int

    def __call__(self) -> SuffixIndex: ...


def best_kind() -> IndexKind:
    """Return the compiled index; the one in Python where nothing is compiled."""
    try:
        compiled: IndexKind = module().SuffixIndex
    except ImportError:
        return ReferenceIndex
    return compiled
