"""Up to which size a GPU's steps are replayed as graphs. Knows numbers alone."""

from __future__ import annotations

from typing import NamedTuple


class GraphLimits(NamedTuple):
    """rows: of steps that only decode. tokens: of all others. 0: such steps have no graph."""

    rows: int
    tokens: int


NO_GRAPHS = GraphLimits(0, 0)
