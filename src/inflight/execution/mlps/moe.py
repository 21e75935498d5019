"""A mixture of experts: of many MLPs each token passes the few that a router picks, and shared ones if there are any.

Which tokens go where is decided and done by the backend, so that nothing waits for an answer between two operations.
Router and shared gate are held as activations are, whatever else is quantized: they decide what is computed.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Experts, Linear, Routing, Vector
from inflight.execution.mlps.dense import DenseWeights
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes, partial_sum
from inflight.execution.program import Program
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import GATINGS, MoE


@computes(MoE)
class MoEWeights(PartWeights, frozen=True):
    spec: MoE
    router: Linear  # [X, E]
    experts: Experts
    shared: DenseWeights | None
    shared_gate: Linear | None  # [1, E]
    separate_norms: SeparateNorms | None

    @classmethod
    def load(cls, packer: Packer, spec: MoE, layer: int, after: str | None) -> MoEWeights:
        at, hidden = f"model.layers.{layer}.mlp.", packer.model.hidden_size
        shared = Dense(width=spec.shared_width, activation=spec.activation) if spec.shared_width else None
        return cls(
            spec=spec,
            router=packer.plain(
                [(at + "gate.weight", (spec.experts, hidden))],
                [(at + "gate.bias", spec.experts)] if spec.router.bias else [],
            ),
            experts=_experts(packer, spec, at),
            shared=DenseWeights.load(packer, shared, layer, None, "mlp.shared_experts") if shared else None,
            shared_gate=packer.plain([(at + "shared_expert_gate.weight", (1, hidden))]) if spec.shared_gate else None,
            separate_norms=SeparateNorms.load(packer, layer, after)
            if spec.separate_shared and after is not None
            else None,
        )

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        if self.separate_norms is not None:
            self._forward_side_by_side(self.separate_norms, program, x, hidden)
            return
        logits = program.take("router_logits", self.spec.experts, "float32")  # [T, X]
        ops.linear(program, x, self.router, logits)
        ops.experts(program, x, logits, self.experts, hidden)
        if self.shared is None:
            return
        if self.shared_gate is None:
            self.shared.forward(program, x, hidden)
            return
        weight = program.take("shared_gate", 1, "float32")  # [T, 1]
        out = program.take("shared", self.shared.down.rows, "float32")  # [T, E]
        ops.linear(program, x, self.shared_gate, weight)
        ops.linear(program, self.shared.inner(program, x), self.shared.down, out)
        ops.add_gated(program, out, weight, hidden)

    def with_partial_sums(self) -> MoEWeights:
        shared = None if self.shared is None else self.shared.with_partial_sums()
        return replace(self, experts=partial_sum(self.experts), shared=shared)

    def _forward_side_by_side(self, norms: SeparateNorms, program: Program, x: Activation, hidden: Activation) -> None:
        """Compute the shared MLP of x, which the layer's norm made, and experts and router of the residual stream by
        their own norms; both results are normed, added up, and normed again."""
        assert self.shared is not None
        size, eps = self.shared.down.rows, norms.eps
        logits = program.take("router_logits", self.spec.experts, "float32")  # [T, X]
        product, total = (program.take(name, size, "float32") for name in ("product", "both"))  # [T, E]
        own = program.take("experts_read", size)  # [T, E]
        ops.linear(program, self.shared.inner(program, x), self.shared.down, product)
        ops.clear(program, total)
        ops.add(program, product, norms.after_shared, eps, 1.0, total)
        ops.rms_norm(program, hidden, norms.before_router, eps, own)
        ops.linear(program, own, self.router, logits)
        ops.rms_norm(program, hidden, norms.before_experts, eps, own)
        ops.clear(program, product)
        ops.experts(program, own, logits, self.experts, product)
        ops.add(program, product, norms.after_experts, eps, 1.0, total)
        ops.add(program, total, norms.after, eps, norms.scale, hidden)


class SeparateNorms(Struct, frozen=True):
    """Norms around a shared MLP and experts that stand side by side, float32[E] each. scale: the factor of
    their sum. The router's norm has its own weight times E^-0.5."""

    after_shared: Vector
    before_router: Vector
    before_experts: Vector
    after_experts: Vector
    after: Vector
    eps: float
    scale: float

    @classmethod
    def load(cls, packer: Packer, layer: int, after: str) -> SeparateNorms:
        at, hidden = f"model.layers.{layer}.", packer.model.hidden_size
        return cls(
            after_shared=packer.norm(at + "post_feedforward_layernorm_1.weight", hidden),
            before_router=packer.vector(at + "mlp.gate.scale", hidden, hidden**-0.5),
            before_experts=packer.norm(at + "pre_feedforward_layernorm_2.weight", hidden),
            after_experts=packer.norm(at + "post_feedforward_layernorm_2.weight", hidden),
            after=packer.norm(after + ".weight", hidden),
            eps=packer.model.norm.eps,
            scale=packer.model.residual_scale,
        )


def _experts(packer: Packer, spec: MoE, at: str) -> Experts:
    """Pack the experts one after the other, so that one of the checkpoint's is in memory at a time."""
    hidden = packer.model.hidden_size
    inward, outward = (spec.width, hidden), (hidden, spec.width)
    gate_up, down = [], []
    for expert in range(spec.experts):
        name = f"{at}experts.{expert}."
        gate, up, back = (f"{name}{part}_proj." for part in ("gate", "up", "down"))
        biases = [(gate + "bias", spec.width), (up + "bias", spec.width)] if spec.bias else []
        gate_up.append(packer.gate_up((gate + "weight", inward), (up + "weight", inward), biases))
        down.append(packer.linear([(back + "weight", outward)], [(back + "bias", hidden)] if spec.bias else []))
    router = spec.router
    routing = Routing(
        top_k=spec.top_k,
        scores=router.scores,
        renormalize=router.renormalize,
        sum_offset=router.sum_offset,
        jitter=router.jitter,
        correction=packer.array(at + "gate.e_score_correction_bias", spec.experts) if router.correction else None,
        groups=router.groups,
        top_groups=router.top_groups,
        group_best=router.group_best,
        scale=router.scale * packer.model.residual_scale,  # of the sum of experts, as of each
        expert_scale=packer.array(at + "gate.per_expert_scale", spec.experts) if router.expert_scale else None,
    )
    return packer.experts(gate_up, down, routing, GATINGS[spec.activation])
