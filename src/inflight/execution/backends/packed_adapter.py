"""A packed adapter (`protocol.handles`): by a layer's packed matrix, what is added to its products. For backends whose
matrices are objects of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from inflight.execution.backends.protocol import Array, Delta, LowRank


class _Packed(Protocol):
    @property
    def nbytes(self) -> int: ...


M = TypeVar("M", bound=_Packed)


@dataclass(frozen=True, slots=True)
class AdapterPart(Generic[M]):
    """An adapter's matrices for outputs from `first` on: A [rank, K], B [outputs, rank]."""

    first: int
    down: M
    up: M


class _Delta(NamedTuple):
    weight: Any  # kept, so that no other takes its identity
    parts: list[Any]


class PackedAdapter(Generic[M]):
    def __init__(self, deltas: Iterable[Delta], pack: Callable[[Array], M]) -> None:
        """Pack deltas. Raises ValueError for shapes that do not fit a matrix."""
        self._deltas: dict[int, _Delta] = {}
        for delta in deltas:
            self._deltas[id(delta.weight)] = _Delta(delta.weight, [_part(delta, part, pack) for part in delta.parts])

    @property
    def nbytes(self) -> int:
        parts = (part for delta in self._deltas.values() for part in delta.parts)
        return sum(part.down.nbytes + part.up.nbytes for part in parts)

    def deltas(self) -> Iterator[tuple[Any, list[AdapterPart[M]]]]:
        """Packed matrices, and what is added to the products of each."""
        return ((delta.weight, delta.parts) for delta in self._deltas.values() if delta.parts)

    def of(self, weight: Any) -> list[AdapterPart[M]]:
        found = self._deltas.get(id(weight))
        return [] if found is None else found.parts


def _part(delta: Delta, part: LowRank, pack: Callable[[Array], M]) -> AdapterPart[M]:
    if part.down.shape != (part.up.shape[1], delta.weight.columns):
        raise ValueError(f"A must be [{part.up.shape[1]}, {delta.weight.columns}], not {list(part.down.shape)}")
    return AdapterPart(part.first, pack(part.down), pack(part.up))
