"""A step model from a model's shape and a GPU's data sheet: what a step takes where nothing was measured.

Kernels run one after the other, so the time of each class of work is max(operations / rate, bytes / bandwidth) and
the classes are *added*; one maximum over all of them would tell a mixed step too short (Williams et al., "Roofline",
2009; the classes as in Vidur and in aiconfigurator). For a step of T tokens, S sampled rows and R rows, under TP-fold
tensor parallelism, with L layers, H query and K KV heads of h, hidden size d, vocabulary V, in FLOP, bytes, seconds:

- linear: 2·T·ΣP FLOP, ΣP·b bytes, P = [d(H+2K)h + Hhd + 3dF]/TP of each layer: weights are read once a step; with
  experts the FLOP count k of them, the bytes those that T tokens touch
- prefill attention: 4·L·(H/TP)·h·Σ t(c + t/2) FLOP; keys and values are read again by each tile of 128 queries
- decode attention: 4·L·(H/TP)·h·Σ c FLOP, 2·L·max(1, K/TP)·h·b_kv·Σ c bytes; and those of the T new tokens, written
- of both, where a layer has a window, its queries see no more than that many positions each; latent attention has
  widths of its own, and its cache is on every GPU; a recurrent state is read and written for each row
- logits head: 2·S·d·V/TP FLOP, d·V/TP bytes in bf16
- all-reduce: two a layer, of T·d values in bf16 (`efficiency`)
- launch: fixed times of a step, a layer and a row (`efficiency`); blocks copied between device and host

Not counted: looking up embeddings, gathering the logits of several GPUs, and drawing tokens.

Knows no requests and no scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inflight.core.types.features import Features
from inflight.models.arithmetic import (
    layer_matrix_parameters,
    matrix_parameters,
    state_flops,
    table_parameters,
    touched_experts,
)
from inflight.models.layer_weights import expert_weights, kinds_of_layers
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec, MoE
from inflight.simulate.efficiency import (
    LEAST_SHARD,
    MOST_TOKENS,
    Case,
    all_reduce_seconds,
    efficiencies,
    measured_family,
    reading_factor,
    shard_share,
    token_share,
)
from inflight.simulate.hardware import ITEM_BYTES, WEIGHT_BYTES, Gpu, Precision
from inflight.simulate.split import caches, check_split

QUERY_TILE = 128  # queries that share one reading of keys and values
Bound = Literal["compute", "bandwidth", "link", "launch"]
KINDS = ("linear", "prefill attention", "decode attention", "logits head", "all-reduce", "launch")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one class of work in a step, and what binds it."""

    kind: str
    seconds: float
    bound: Bound


class Roofline:
    def __init__(
        self,
        spec: ModelSpec,
        gpu: Gpu,
        tensor_parallel: int = 1,
        *,
        weights: Precision = "bf16",
        kv: Precision = "bf16",
        case: Case = "typical",
        block_size: int = 16,
    ):
        """weights, kv: precision they are held in. case: which end of the efficiencies' ranges. block_size: tokens of
        the KV blocks that are copied when sequences are swapped."""
        check_split(spec, tensor_parallel)
        self.spec, self.gpu, self.tensor_parallel = spec, gpu, tensor_parallel
        self.weights, self.kv, self.case = weights, kv, case
        self._shares = efficiencies(gpu.name, case)
        self._peak = gpu.flops_per_s(weights)
        self._layers = len(spec.layers)
        self._weights = _linear_layers(spec, tensor_parallel)
        self._shard = 2 * matrix_parameters(spec) / self._layers / tensor_parallel
        self._caches = caches(spec, tensor_parallel)
        self._token_bytes = sum(one.elements for one in self._caches) * ITEM_BYTES[kv]  # of one token, on one GPU
        self._state_bytes = 2 * state_bytes(spec) / tensor_parallel  # of one row: read and written
        self._head = table_parameters(spec) / tensor_parallel
        self._block_bytes = block_size * self._token_bytes

    @property
    def name(self) -> str:
        """In words, with the fact that it rests on no measurement of this hardware."""
        split = "" if self.tensor_parallel == 1 else f" × {self.tensor_parallel}"
        source = "judged efficiencies" if measured_family(self.gpu.name) is None else "published efficiencies"
        return f"{self.gpu.name}{split}, data sheet and {source}, not calibrated on your hardware"

    def seconds(self, held: Features) -> float:
        """How long the step takes."""
        return sum(cost.seconds for cost in self.costs(held))

    def costs(self, held: Features) -> tuple[Cost, ...]:
        """The step's time by class of work, in the order of KINDS."""
        return (
            self._linear(held),
            self._prefill_attention(held),
            self._decode_attention(held),
            self._logits(held),
            self._exchange(held),
            self._launch(held),
        )

    def extrapolates(self, held: Features) -> str | None:
        """What a step asks beyond the measured efficiencies."""
        if held.tokens > MOST_TOKENS:
            return f"A step has {held.tokens:,} tokens; kernels were measured up to {MOST_TOKENS:,}."
        if self._shard < LEAST_SHARD:
            return (
                f"A layer's weights on one GPU are {self._shard / 1e6:.0f} MB; shards were measured from "
                f"{LEAST_SHARD / 1e6:.0f} MB on, and smaller ones are slower than said."
            )
        return None

    def _linear(self, held: Features) -> Cost:
        tokens = held.tokens
        if not tokens:
            return Cost("linear", 0.0, "bandwidth")
        flops, read = tokens * self._weights.flops, self._weights.matrices + self._weights.touched(tokens)
        rate = self._peak * self._shares.linear_compute * token_share(tokens) * shard_share(self._shard)
        bandwidth = self.gpu.bytes_per_s * self._shares.linear_memory / reading_factor(tokens)
        return _slower("linear", flops / rate, read * WEIGHT_BYTES[self.weights] / bandwidth)

    def _prefill_attention(self, held: Features) -> Cost:
        # Attention computes in bf16, whatever the weights and the cache are held in.
        pairs = [(one, one.seen(held.prefill_context, held.tokens)) for one in self._caches]
        flops = sum(one.prompt_flops * seen for one, seen in pairs)
        read = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv] / QUERY_TILE
        rate = self.gpu.flops_per_s("bf16") * self._shares.prefill_compute
        return _slower("prefill attention", flops / rate, read / (self.gpu.bytes_per_s * self._shares.decode_memory))

    def _decode_attention(self, held: Features) -> Cost:
        pairs = [(one, one.seen(held.decode_context, held.rows)) for one in self._caches]
        flops = sum(one.decode_flops * seen for one, seen in pairs)
        moved = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv]
        moved += self._token_bytes * held.tokens + self._state_bytes * held.rows
        rate = self.gpu.flops_per_s("bf16") * self._shares.decode_compute
        return _slower("decode attention", flops / rate, moved / (self.gpu.bytes_per_s * self._shares.decode_memory))

    def _logits(self, held: Features) -> Cost:
        if not held.samples:
            return Cost("logits head", 0.0, "bandwidth")
        rate = self.gpu.flops_per_s("bf16") * self._shares.linear_compute * token_share(held.samples)
        bandwidth = self.gpu.bytes_per_s * self._shares.linear_memory / reading_factor(held.samples)
        read = self._head * ITEM_BYTES["bf16"] / bandwidth
        return _slower("logits head", 2 * held.samples * self._head / rate, read)

    def _exchange(self, held: Features) -> Cost:
        message = held.tokens * self.spec.hidden_size * ITEM_BYTES["bf16"]
        each = all_reduce_seconds(self.gpu, self.tensor_parallel, message)
        return Cost("all-reduce", 2 * self._layers * each * self._shares.all_reduce, "link")

    def _launch(self, held: Features) -> Cost:
        shares = self._shares
        fixed = shares.step_launch + shares.layer_launch * self._layers + shares.row_launch * held.rows
        copied = held.moved_blocks * self._block_bytes / (self.gpu.host_gb_per_s * 1e9)
        return Cost("launch", fixed + copied, "launch")


@dataclass(frozen=True, slots=True)
class _Linear:
    """Of the layers' matrices on one GPU. flops: of a token. matrices: elements that every step reads. experts: of each
    kind of mixture its MLP, and elements of one expert over all layers of the kind."""

    flops: float
    matrices: float
    experts: tuple[tuple[MoE, float], ...]

    def touched(self, tokens: int) -> float:
        """Elements of the experts that so many tokens use."""
        return sum(touched_experts(mlp, tokens) * elements for mlp, elements in self.experts)


def _linear_layers(spec: ModelSpec, tensor_parallel: int) -> _Linear:
    flops = matrices = 0.0
    experts = []
    for layer, count in kinds_of_layers(spec):
        mlp, part = layer.mlp, count / tensor_parallel
        picked = mlp.top_k if isinstance(mlp, MoE) else 0
        flops += part * (2 * layer_matrix_parameters(spec, layer, picked) + state_flops(layer.mixer))
        matrices += part * layer_matrix_parameters(spec, layer, 0)
        if isinstance(mlp, MoE):
            experts.append((mlp, part * expert_weights(mlp, spec.hidden_size).elements))
    return _Linear(flops, matrices, tuple(experts))


def _slower(kind: str, compute: float, memory: float) -> Cost:
    return Cost(kind, compute, "compute") if compute > memory else Cost(kind, memory, "bandwidth")
