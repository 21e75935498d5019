"""A mixture of experts: of many MLPs each token passes the few that a router picks, and shared ones if there are any.

Which tokens go where is decided and done by the backend, so that nothing waits for an answer between two operations.
Router and shared gate are held as activations are, whatever else is quantized: they decide what is computed.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, Experts, ForwardPass, Linear, Routing, Vector
from inflight.execution.layers.dense import DenseWeights
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.runnable import ACTIVATIONS, GATINGS
from inflight.models.spec import Dense, MoE


class MoEWeights(Struct, frozen=True):
    spec: MoE
    router: Linear  # [X, E]
    experts: Experts
    shared: DenseWeights | None
    shared_gate: Linear | None  # [1, E]
    separate_norms: SeparateNorms | None

    @classmethod
    def load(cls, packer: Packer, spec: MoE, layer: int, after: str | None = None) -> MoEWeights:
        """after: the name of the norm of the result, if there is one."""
        at, hidden = f"model.layers.{layer}.mlp.", packer.model.hidden_size
        shared = Dense(width=spec.shared_width, activation=spec.activation) if spec.shared_width else None
        return cls(
            spec=spec,
            router=packer.router(
                (at + "gate.weight", (spec.experts, hidden)), at + "gate.bias" if spec.router.bias else None
            ),
            experts=_experts(packer, spec, at),
            shared=DenseWeights.load(packer, shared, layer, None, "mlp.shared_experts") if shared else None,
            shared_gate=packer.router((at + "shared_expert_gate.weight", (1, hidden))) if spec.shared_gate else None,
            separate_norms=SeparateNorms.load(packer, layer, after)
            if spec.separate_shared and after is not None
            else None,
        )

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        if self.separate_norms is not None:
            return self._beside(self.separate_norms, workspace, hidden_size)
        router, experts, gate = self.router, self.experts, self.shared_gate
        logits = workspace.take("router_logits", self.spec.experts, "float32")  # [T, X]
        shared = self.shared.bind(workspace, hidden_size) if self.shared and gate is None else None

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, router, logits)
            batch.experts(normed, logits, experts, hidden)
            if shared is not None:
                shared(batch, normed, hidden)

        return run if self.shared is None or gate is None else _with_gated(run, self.shared, gate, workspace)

    def _beside(self, norms: SeparateNorms, workspace: Workspace, hidden_size: int) -> Part:
        """Build steps in which the shared MLP reads what the layer's norm made, and experts and router the residual
        stream by their own norms; both outputs are normed, added up, and normed again."""
        router, experts, shared = self.router, self.experts, self.shared
        assert shared is not None
        gate_up, down, activation = shared.gate_up, shared.down, ACTIVATIONS[self.spec.activation]
        inner = workspace.take("inner", shared.spec.width)  # [T, F]
        logits = workspace.take("router_logits", self.spec.experts, "float32")  # [T, X]
        product, total = (workspace.take(name, hidden_size, "float32") for name in ("product", "both"))  # [T, E]
        own = workspace.take("experts_read", hidden_size)
        eps, scale = norms.eps, norms.scale

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.gate_up(normed, gate_up, inner, activation)
            batch.linear(inner, down, product)
            batch.clear(total)
            batch.add(product, norms.after_shared, eps, 1.0, total)
            batch.rms_norm(hidden, norms.before_router, eps, own)
            batch.linear(own, router, logits)
            batch.rms_norm(hidden, norms.before_experts, eps, own)
            batch.clear(product)
            batch.experts(own, logits, experts, product)
            batch.add(product, norms.after_experts, eps, 1.0, total)
            batch.add(total, norms.after, eps, scale, hidden)

        return run


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
            before_router=packer.scaled(at + "mlp.gate.scale", hidden, hidden**-0.5),
            before_experts=packer.norm(at + "pre_feedforward_layernorm_2.weight", hidden),
            after_experts=packer.norm(at + "post_feedforward_layernorm_2.weight", hidden),
            after=packer.norm(after + ".weight", hidden),
            eps=packer.model.norm.eps,
            scale=packer.model.residual_scale,
        )


def _with_gated(routed: Part, shared: DenseWeights, gate: Linear, workspace: Workspace) -> Part:
    """Return steps that run `routed`, and add the shared expert times the sigmoid of the token's gate."""
    gate_up, down, activation = shared.gate_up, shared.down, ACTIVATIONS[shared.spec.activation]
    inner = workspace.take("inner", shared.spec.width)  # [T, F]
    weight = workspace.take("shared_gate", 1, "float32")  # [T, 1]
    out = workspace.take("shared", down.rows, "float32")  # [T, E]

    def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
        routed(batch, normed, hidden)
        batch.linear(normed, gate, weight)
        batch.gate_up(normed, gate_up, inner, activation)
        batch.linear(inner, down, out)
        batch.add_gated(out, weight, hidden)

    return run


def _experts(packer: Packer, spec: MoE, at: str) -> Experts:
    """One after the other, so that of a checkpoint's experts one is in memory at a time."""
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
