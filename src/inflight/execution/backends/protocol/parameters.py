"""Parameters of operations beside activations and weights, the same in every pass: functions by their names, rotations
as tables, and how tokens are routed to experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from inflight.execution.backends.protocol.number_formats import Array

# Activation functions. gelu: x · Φ(x), with the distribution of the normal law; gelu_tanh: x · sigmoid(2 · √(2/π) · (x
# + 0.044715 · x³)), which is gelu by tanh; relu: max(x, 0); relu2: its square. xielu, with parameters p and n that a
# model learns: x / 2 + p · x² of what is positive, x / 2 + n · (exp(min(x, -10⁻⁶)) - 1 - x) of the rest.
Nonlinearity = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh", "xielu"]
# How gate opens up within an expert. silu, gelu_tanh: of gate, times up; clamped_swiglu (gpt-oss): (up + 1) · g ·
# sigmoid(1.702 · g) with g = min(gate, 7) and up from -7 to 7.
Gating = Literal["silu", "gelu_tanh", "clamped_swiglu"]


class RopeTable(Struct, frozen=True):
    """Rotary embedding of the first R values of a head, R up to D, by halves (Hugging Face convention: x[i] pairs with
    x[i + R/2]); scaling is already in."""

    cos: Array  # float32[positions, R / 2]
    sin: Array  # float32[positions, R / 2]
    q_scale: Array | None = None  # float32[positions], what queries are multiplied by
    grow: Callable[[int], None] | None = None  # computes cos and sin up to so many positions; None: all are computed

    def reach(self, positions: int) -> None:
        """Compute cos and sin of so many positions, where they are not computed yet."""
        if self.grow is not None:
            self.grow(positions)

    def whole(self) -> RopeTable:
        """Return this table with all positions computed."""
        self.reach(len(self.cos))
        return self


class Routing(Struct, frozen=True):
    """How a token's float32 logits of the X experts become the `top_k` that it passes, in order of rank, and their
    weights (`models.mlps.moe.Router` has the meanings).

    Scores are the softmax or the sigmoid of the logits, or `sparsemixer` (below). Experts are picked by falling score +
    correction, on a tie (and for NaN, which is never larger) the lower number first. With more than one group only
    experts of the `top_groups` groups with the largest sums of their `group_best` best such values can be. Weights are
    the scores of the picked, divided by their sum + sum_offset, but at least 10⁻²⁰, if they are to be renormalized,
    times scale, times the expert's own.

    sparsemixer: experts are picked by falling logit m₁ ≥ m₂ ≥ …, on a tie the lower number first; the weight of the
    r-th is 1 / Σ e^(x − mᵣ) over the logits x that are not picked before it and for which not
    (mᵣ − x) / max(|x|, mᵣ) > 2 · jitter, times scale. Nothing else of what is above applies.
    """

    top_k: int
    scores: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    renormalize: bool = False
    sum_offset: float = 0.0
    jitter: float = 0.0
    correction: Array | None = None  # float32[X]
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    expert_scale: Array | None = None  # float32[X]
