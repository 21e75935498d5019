"""A mixture of experts: its sizes and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from inflight.models.mlps.dense import activation_error, slices_by_width
from inflight.models.parts import Mlp, Slices, Weights, not_computed

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec

Scores = Literal["softmax", "sigmoid", "sparsemixer"]
CLAMPED_SWIGLU = "clamped_swiglu"  # gpt-oss's activation function, of which no config.json says the name
GATINGS: dict[str, Literal["silu", "gelu_tanh", "clamped_swiglu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    CLAMPED_SWIGLU: "clamped_swiglu",
}


class Router(Struct, frozen=True, kw_only=True):
    """How a token's logits of the experts become the `top_k` it passes and their weights.

    Attributes:
        scores: Of all experts, from the logits. sparsemixer (Phi-3.5-MoE) picks experts one after the other by their
            logits, and weighs each by the softmax over those left whose logits are near its own.
        renormalize: The weights of the picked are divided by their sum + `sum_offset`; `scale` then multiplies all.
        jitter: How near logits are for sparsemixer (`execution.backends.protocol`).
        bias: One value an expert is added to the logits.
        correction: One value an expert counts where experts are picked, and not in their weights.
        groups: Experts are in so many equal groups, of which only the `top_groups` with the largest sums of their
            `group_best` best scores can be picked; 1 is all.
        expert_scale: One value an expert multiplies its weight.
        norm: The router reads the residual stream through an RMS norm of its own.
    """

    scores: Scores = "softmax"
    renormalize: bool = False
    sum_offset: float = 0.0
    jitter: float = 0.0
    bias: bool = False
    correction: bool = False
    groups: int = 1
    top_groups: int = 1
    group_best: int = 2
    scale: float = 1.0
    expert_scale: bool = False
    norm: bool = False


class MoE(Mlp, frozen=True, kw_only=True):
    """Gated experts of which a router picks `top_k` for each token.

    Attributes:
        bias: Experts have biases.
        shared_width: Of the experts that every token passes, together; 0 for none.
        shared_gate: A learnt gate weighs the shared experts.
        separate_shared: The shared experts and the routed ones are two MLPs side by side (Gemma 4), each with a norm
            before it (of the shared one the layer's) and one after it; the norm after both takes their sum.
    """

    experts: int
    top_k: int
    width: int
    activation: str
    router: Router = Router()
    bias: bool = False
    shared_width: int = 0
    shared_gate: bool = False
    separate_shared: bool = False

    def weights(self, hidden: int) -> Weights:
        """Return the router's weights and those of the shared experts."""
        matrices = [(self.experts, hidden)]
        if self.shared_width:
            matrices += [(2 * self.shared_width, hidden), (hidden, self.shared_width)]
        if self.shared_gate:
            matrices.append((1, hidden))
        router = self.router
        of_experts = self.experts * (router.bias + router.correction + router.expert_scale)
        return Weights(tuple(matrices), of_experts + hidden * (router.norm + 3 * self.separate_shared))

    def expert_weights(self, hidden: int) -> Weights:
        others = 2 * self.width + hidden if self.bias else 0
        return Weights(((2 * self.width, hidden), (hidden, self.width)), others)

    @property
    def plain_outputs(self) -> int:
        return self.experts + self.shared_gate  # they choose a token's experts, and weigh shared ones

    @property
    def passed_width(self) -> int:
        return self.top_k * self.width + self.shared_width

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        if self.activation not in GATINGS:
            raise activation_error(self.activation)
        if self.separate_shared != ("after mlp" in layer.norms):
            raise not_computed(model, "norms after experts")
        if self.shared_gate and model.residual_scale != 1:
            raise not_computed(model, "scaled residuals with a gated shared expert")

    @property
    def whole(self) -> None:
        return None

    def uneven(self, devices: int) -> str | None:
        if self.width % devices:
            return f"experts of width {self.width:,}"
        return f"shared experts of width {self.shared_width:,}" if self.shared_width % devices else None

    def on_one_of(self, devices: int) -> MoE:
        return replace(self, width=self.width // devices, shared_width=self.shared_width // devices)

    def slices(self, tensor: str, devices: int) -> Slices | None:
        return slices_by_width(tensor, devices)

    def rows(self, matrix: str) -> int:
        return self.shared_width  # experts have names of their own (`checkpoints.expert_names`)
