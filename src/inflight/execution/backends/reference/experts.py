"""A mixture of experts (Shazeer et al., arXiv 1701.06538): what the experts that a token is routed to yield, added up.

Knows one token at a time; which experts it passes is known to `routing`.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.products import gate_up, product
from inflight.execution.backends.reference.routing import route
from inflight.execution.backends.reference.weights import ReferenceExperts


def mixture(token: Array, logits: Array, weight: ReferenceExperts, act: Act) -> Array:
    """token float32[1, E], logits float32[X] → float32[E] = Σ share · (gate_up(x) · downᵀ) over the experts that it is
    routed to, in order of rank: one float32 chain."""
    total = np.zeros(weight.down[0].rows, np.float32)
    for expert, share in zip(*route(logits, weight.routing), strict=True):
        inner = act.read(gate_up(token, weight.gate_up[expert], weight.gating, act))
        total += share * product(inner, weight.down[expert], act)[0]
    return total
