"""Packed weights: what `ReferenceBackend.pack_…` gives out.

Knows shapes and bytes; how they are made of a checkpoint's matrices is known to `packing`, what is computed with them
to `products`, `experts` and `pass_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.grouped import HeldMatrix
from inflight.execution.backends.matrices import Int8Matrix
from inflight.execution.backends.protocol import Array, Gating, Routing

Held = Array | HeldMatrix  # `act`, or quantized


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """A weight matrix [N, K], of parts that are stacked along N and may be held in different ways, and its bias."""

    parts: tuple[Held, ...]
    bias: Array | None

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
class ReferenceGateUp:
    """Gate and up projections [F, E]."""

    gate: ReferenceLinear
    up: ReferenceLinear

    @property
    def rows(self) -> int:
        return self.gate.rows

    @property
    def columns(self) -> int:
        return self.gate.columns

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.up.nbytes


@dataclass(frozen=True, slots=True)
class ReferenceExperts:
    """Each expert's gate and up projections, and its down projection [E, F]; and how tokens are routed to them."""

    gate_up: tuple[ReferenceGateUp, ...]
    down: tuple[ReferenceLinear, ...]
    routing: Routing
    gating: Gating

    @property
    def count(self) -> int:
        return len(self.down)


@dataclass(frozen=True, slots=True)
class ReferenceHeads:
    """A matrix [N, K] for each head."""

    matrices: tuple[ReferenceLinear, ...]

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
class ReferenceTable:
    """An embedding table [V, E]; tied, the same memory is the output projection. shares: rows of `weight` that make up
    one of the table, where parts of a row have scales of their own."""

    weight: Held | Int8Matrix
    linear: ReferenceLinear | None
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
