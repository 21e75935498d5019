"""Packed weights as numpy definitions read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inflight.execution.backends.matrices import Int8Matrix
from inflight.execution.backends.protocol import Array, Gating, Routing


class QuantizedMatrix(Protocol):
    """A matrix [N, K] in codes, which says itself how activations meet it."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def rows(self, at: Array) -> Array:
        """Return some outputs' weights, float32[len(at), K]."""

    def product(self, x: Array) -> Array:
        """float32[S, K] → float32[S, N] = x · Wᵀ, each row by itself."""


Packed = Array | QuantizedMatrix  # an array of `act`


@dataclass(frozen=True, slots=True)
class NumpyLinear:
    """A weight matrix [N, K], of parts that are stacked along N and may be packed in different ways, and its bias."""

    parts: tuple[Packed, ...]
    bias: Array | None = None

    @property
    def rows(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def columns(self) -> int:
        return int(self.parts[0].shape[1])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts) + (0 if self.bias is None else self.bias.nbytes)


@dataclass(frozen=True, slots=True)
class NumpyGateUp:
    """Gate and up projections [F, E], the gates' F outputs first."""

    both: NumpyLinear

    @property
    def rows(self) -> int:
        return self.both.rows // 2

    @property
    def columns(self) -> int:
        return self.both.columns

    @property
    def nbytes(self) -> int:
        return self.both.nbytes


@dataclass(frozen=True, slots=True)
class NumpyExperts:
    """Each expert's gate and up projections, and its down projection [E, F]; and how tokens are routed to them."""

    gate_up: tuple[NumpyGateUp, ...]
    down: tuple[NumpyLinear, ...]
    routing: Routing
    gating: Gating

    @property
    def count(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class NumpyHeads:
    """A matrix [N, K] for each head."""

    matrices: tuple[NumpyLinear, ...]

    @property
    def count(self) -> int:
        return len(self.matrices)

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @property
    def columns(self) -> int:
        return self.matrices[0].columns

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class NumpyTable:
    """An embedding table [V, E]; tied, the same memory is the output projection. shares: rows of `weight` that make up
    one of the table, where parts of a row have scales of their own."""

    weight: Packed | Int8Matrix
    linear: NumpyLinear | None = None
    shares: int = 1

    @property
    def rows(self) -> int:
        return int(self.weight.shape[0]) // self.shares

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1]) * self.shares

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes) if self.linear is None else self.linear.nbytes
