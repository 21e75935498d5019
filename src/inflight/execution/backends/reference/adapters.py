"""Adds adapters' low-rank products to the sums of matrices (`protocol.adapters`).

Knows which of a pass's rows are computed with which adapter, and each row's sums; not what is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.products import product
from inflight.execution.backends.reference.weights import ReferenceGateUp, ReferenceLinear
from inflight.execution.batch.pass_layout import AdaptedRows


class AddedRows:
    """Adapters' sums of one pass."""

    def __init__(self, adapted: Sequence[AdaptedRows], act: Act):
        self._adapted, self._act = adapted, act

    def to(self, tokens: Array, weight: ReferenceLinear | ReferenceGateUp) -> Array | None:
        """tokens float32[S, K] → what is added to their sums, float32[S, outputs]; None: to no row anything."""
        found = None
        outputs = 2 * weight.rows if isinstance(weight, ReferenceGateUp) else weight.rows
        for rows, adapter in self._adapted:
            for part in adapter.of(weight):
                if found is None:
                    found = np.zeros((len(tokens), outputs), np.float32)
                lowered = self._act.read(self._act.hold(product(tokens[rows], part.down, self._act)))
                found[rows, part.first : part.first + part.up.rows] = product(lowered, part.up, self._act)
        return found
