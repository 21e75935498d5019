"""A mixture of experts: of many MLPs each token passes the few that a router picks, and shared ones if there are any.

Which tokens go where is decided and done by the backend, so that nothing waits for an answer between two operations.
Router and shared gate are held as activations are, whatever else is quantized: they decide what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import Activation, Experts, ForwardPass, Linear, Routing
from inflight.execution.layers.dense import DenseWeights
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import CLAMPED_SWIGLU, Dense, MoE


@dataclass(frozen=True, slots=True)
class MoEWeights:
    spec: MoE
    router: Linear  # [X, E]
    experts: Experts
    shared: DenseWeights | None
    shared_gate: Linear | None  # [1, E]

    @classmethod
    def load(cls, packer: Packer, spec: MoE, layer: int) -> MoEWeights:
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
        )

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        router, experts, gate = self.router, self.experts, self.shared_gate
        logits = workspace.take("router_logits", self.spec.experts, "float32")  # [T, X]
        shared = self.shared.bind(workspace, hidden_size) if self.shared and gate is None else None

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, router, logits)
            batch.experts(normed, logits, experts, hidden)
            if shared is not None:
                shared(batch, normed, hidden)

        return run if self.shared is None or gate is None else _with_gated(run, self.shared, gate, workspace)


def _with_gated(routed: Part, shared: DenseWeights, gate: Linear, workspace: Workspace) -> Part:
    """What `routed` does, and the shared expert times the sigmoid of the token's gate."""
    gate_up, down = shared.gate_up, shared.down
    inner = workspace.take("inner", shared.spec.width)  # [T, F]
    weight = workspace.take("shared_gate", 1, "float32")  # [T, 1]
    out = workspace.take("shared", down.rows, "float32")  # [T, E]

    def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
        routed(batch, normed, hidden)
        batch.linear(normed, gate, weight)
        batch.gate_up(normed, gate_up, inner)
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
        correction=packer.array(at + "gate.e_score_correction_bias", spec.experts) if router.correction else None,
        groups=router.groups,
        top_groups=router.top_groups,
        group_best=router.group_best,
        scale=router.scale * packer.model.residual_scale,  # of the sum of experts, as of each
    )
    return packer.experts(gate_up, down, routing, "clamped_swiglu" if spec.activation == CLAMPED_SWIGLU else "silu")
