"""A step model from a model's shape and a GPU's data sheet, where no step was measured.

Kernels run one after the other, so the time of each class of work is max(operations / rate, bytes / bandwidth), and
the classes are added (Williams et al., "Roofline", 2009). docs/planning.md has the formulas. Embedding look-ups, the
gathering of several GPUs' logits and sampling are not counted. Kernels reach a share of the data sheet's rates
(`efficiency`), collectives are measured (`collectives`), and an engine's host works beside the GPU or between its steps
(`engine_costs`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from inflight.core.types.features import Features
from inflight.models.arithmetic import layer_matrix_parameters, matrix_parameters, table_parameters
from inflight.models.mixers.attention import Attention
from inflight.models.parts import Mlp
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec
from inflight.simulate.collectives import all_reduce_seconds
from inflight.simulate.efficiency import (
    MAX_MEASURED_TOKENS,
    MIN_SHARD_BYTES,
    Case,
    Efficiencies,
    efficiencies,
    measured_family,
    reading_factor,
    shard_share,
    spread,
    token_share,
    width_share,
)
from inflight.simulate.engine_costs import EngineCosts, engine_costs
from inflight.simulate.hardware import ITEM_BYTES, Gpu, Precision, packing
from inflight.simulate.tensor_parallel import cache_shards, check_tensor_parallel

QUERY_TILE = 128  # queries that share one reading of keys and values
EXPERT_PASSES = 4  # times that vectors of the chosen experts are read or written beside their products
Bound = Literal["compute", "bandwidth", "link", "launch"]
KINDS = ("linear", "prefill attention", "decode attention", "logits head", "all-reduce", "launch")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one class of work in a step, and its bottleneck."""

    kind: str
    seconds: float
    bound: Bound


class Roofline:
    """The step model of a model on a GPU, or on several by tensor parallelism."""

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
        engine: EngineCosts | None = None,
        shares: Efficiencies | None = None,
    ):
        """Make the model of a GPU, or of several by tensor parallelism.

        Args:
            weights, kv: their precisions.
            case: the end of the spread of published runs around it.
            block_size: tokens of the KV blocks that are copied when sequences are swapped.
            engine: what its host costs; None: this engine's.
            shares: of the data sheet's rates; None: the GPU's.
        """
        check_tensor_parallel(spec, tensor_parallel)
        self.spec, self.gpu, self.tensor_parallel = spec, gpu, tensor_parallel
        self.weights, self.kv, self.case = weights, kv, case
        self._shares = efficiencies(gpu.name) if shares is None else shares
        self._engine = engine_costs() if engine is None else engine
        self._packing = packing(weights)
        self._layers = len(spec.layers)
        self._weights = _linear_layers(spec, tensor_parallel)
        self._factor = spread(gpu.name, bool(self._weights.experts), case)
        self._shard = 2 * matrix_parameters(spec) / self._layers / tensor_parallel
        self._dense_shard = 2 * self._weights.matrices / self._layers
        self._sinks = self._shares.sinks if _has_sinks(spec) else 1.0
        self._caches = cache_shards(spec, tensor_parallel)
        self._token_bytes = sum(one.elements for one in self._caches) * ITEM_BYTES[kv]  # of one token, on one GPU
        self._state_bytes = 2 * state_bytes(spec) / tensor_parallel  # of one row: read and written
        self._head = table_parameters(spec) / tensor_parallel
        self._block_bytes = block_size * self._token_bytes

    @property
    def name(self) -> str:
        """A description that says that nothing was measured on this hardware."""
        split = "" if self.tensor_parallel == 1 else f" × {self.tensor_parallel}"
        source = "estimated efficiencies" if measured_family(self.gpu.name) is None else "published efficiencies"
        return f"{self.gpu.name}{split}, data sheet and {source}, not calibrated on your hardware"

    def seconds(self, features: Features) -> float:
        """Return how long a step takes."""
        return sum(cost.seconds for cost in self.costs(features))

    def costs(self, features: Features) -> tuple[Cost, ...]:
        """Return a step's time by class of work, in the order of KINDS."""
        if not features.prefill_context and (padded := self._engine.padded(features.tokens)) != features.tokens:
            features = replace(features, tokens=padded)
        work = (
            self._linear(features),
            self._prefill_attention(features),
            self._decode_attention(features),
            self._logits(features),
            self._exchange(features),
        )
        factor = self._factor * self._engine.kernels
        kernels = sum(cost.seconds for cost in work) * self._engine.kernels
        return (
            *(Cost(cost.kind, cost.seconds * factor, cost.bound) for cost in work),
            Cost("launch", self._factor * self._launch(features, kernels), "launch"),
        )

    def extrapolates(self, features: Features) -> str | None:
        """Return a sentence on a step beyond the measured efficiencies; None where it is within."""
        if features.tokens > MAX_MEASURED_TOKENS:
            return f"A step has {features.tokens:,} tokens; kernels were measured up to {MAX_MEASURED_TOKENS:,}."
        if self._shard < MIN_SHARD_BYTES:
            return (
                f"A layer's weights on one GPU are {self._shard / 1e6:.0f} MB; shards were measured from "
                f"{MIN_SHARD_BYTES / 1e6:.0f} MB on, and smaller ones are slower than modelled."
            )
        return None

    def _linear(self, features: Features) -> Cost:
        tokens = features.tokens
        if not tokens:
            return Cost("linear", 0.0, "bandwidth")
        shares, weights = self._shares, self._weights
        rate = self._rate(self._packing.matrix, shares.fp8_compute, shares.widened_compute) * shares.linear_compute
        rate *= token_share(tokens) * shard_share(self._dense_shard)
        read = weights.matrices * self._packing.matrix * reading_factor(tokens)
        dense = _slower(
            "linear",
            tokens * weights.flops / rate,
            read / (self.gpu.bytes_per_s * shares.linear_memory),
        )
        of_experts = [self._experts(tokens, one) for one in weights.experts]
        longest = max((dense, *of_experts), key=lambda cost: cost.seconds)
        return Cost("linear", dense.seconds + sum(cost.seconds for cost in of_experts), longest.bound)

    def _experts(self, tokens: int, experts: _Experts) -> Cost:
        """Return the time of the experts of all layers with the same MLP: each touched one is read, and computes the
        tokens that chose it, whose vectors are gathered for it and added up after it."""
        touched, shares = experts.mlp.touched_experts(tokens), self._shares
        item = self._packing.matrix if self._packing.expert is None else self._packing.expert
        chosen = tokens * experts.mlp.top_k
        rate = self._rate(item, shares.expert_fp8, shares.expert_widened) * shares.expert_compute
        rate *= token_share(chosen / touched) * width_share(experts.width)
        bandwidth = self.gpu.bytes_per_s * shares.expert_memory
        cost = _slower("linear", 2 * chosen * experts.elements / rate, touched * experts.elements * item / bandwidth)
        moved = EXPERT_PASSES * chosen * self.spec.hidden_size * ITEM_BYTES["bf16"] * experts.layers
        return Cost("linear", cost.seconds + moved / bandwidth, cost.bound)

    def _rate(self, item: float, in_eight_bits: float, widened: float) -> float:
        """Return the operations per second of matrices of so many bytes an element, at the rate of bf16's kernels but
        for these factors."""
        if item == ITEM_BYTES["bf16"]:
            return self.gpu.flops_per_s("bf16")
        return self.gpu.flops_per_s(self.weights) * (in_eight_bits if self.gpu.computes(self.weights) else widened)

    def _prefill_attention(self, features: Features) -> Cost:
        # Attention computes in bf16, whatever the precision of weights and cache.
        pairs = [(one, one.seen(features.prefill_context, features.tokens)) for one in self._caches]
        flops = sum(one.prompt_flops * seen for one, seen in pairs)
        read = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv] / QUERY_TILE
        rate = self.gpu.flops_per_s("bf16") * self._shares.prefill_compute * self._sinks
        return _slower("prefill attention", flops / rate, read / (self.gpu.bytes_per_s * self._shares.decode_memory))

    def _decode_attention(self, features: Features) -> Cost:
        pairs = [(one, one.seen(features.decode_context, features.rows)) for one in self._caches]
        flops = sum(one.decode_flops * seen for one, seen in pairs)
        moved = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv]
        moved += self._token_bytes * features.tokens + self._state_bytes * features.rows
        mixed = self._shares.mixed_decode if features.prefill_context else 1.0
        rate = self.gpu.flops_per_s("bf16") * self._shares.decode_compute
        bandwidth = self.gpu.bytes_per_s * self._shares.decode_memory * self._sinks * mixed
        return _slower("decode attention", flops / rate, moved / bandwidth)

    def _logits(self, features: Features) -> Cost:
        if not features.samples:
            return Cost("logits head", 0.0, "bandwidth")
        rate = self.gpu.flops_per_s("bf16") * self._shares.linear_compute * token_share(features.samples)
        bandwidth = self.gpu.bytes_per_s * self._shares.linear_memory / reading_factor(features.samples)
        read = self._head * ITEM_BYTES["bf16"] / bandwidth
        return _slower("logits head", 2 * features.samples * self._head / rate, read)

    def _exchange(self, features: Features) -> Cost:
        message = features.tokens * self.spec.hidden_size * ITEM_BYTES["bf16"]
        each = all_reduce_seconds(self.gpu, self.tensor_parallel, message)
        return Cost("all-reduce", 2 * self._layers * each * self._shares.all_reduce, "link")

    def _launch(self, features: Features, kernels: float) -> float:
        """Return the seconds that a step takes beside its kernels: gaps between them, and what the host does meanwhile
        for longer than they take, or after them."""
        engine, shares = self._engine, self._shares
        with_experts = sum(one.layers for one in self._weights.experts)
        device = kernels + (shares.layer_launch * self._layers + shares.expert_launch * with_experts) * engine.kernels
        if features.tokens > engine.graph_tokens:
            device = max(device, engine.eager_layer * self._layers)
        host = engine.step_seconds(features.rows)
        whole = max(device + engine.step, host) if engine.overlapped else device + host
        whole = max(whole, engine.token * features.samples)
        copied = features.moved_blocks * self._block_bytes / (self.gpu.host_gb_per_s * 1e9)
        return whole - kernels + copied


@dataclass(frozen=True, slots=True)
class _Experts:
    """Layers with the same mixture. elements: of one expert over all of them, on one GPU. width: of its hidden layer
    there."""

    mlp: Mlp
    elements: float
    layers: int
    width: float


@dataclass(frozen=True, slots=True)
class _Linear:
    """The layers' matrices on one GPU. flops: of a token, without experts. matrices: elements that every step reads."""

    flops: float
    matrices: float
    experts: tuple[_Experts, ...]


def _linear_layers(spec: ModelSpec, tensor_parallel: int) -> _Linear:
    flops = matrices = 0.0
    experts = []
    for layer, count in spec.kinds_of_layers:
        part = count / tensor_parallel
        elements = layer_matrix_parameters(spec, layer, 0)
        flops += part * (2.0 * elements + layer.mixer.state_flops)
        matrices += part * elements
        if layer.mlp.experts:
            expert = layer.mlp.expert_weights(spec.hidden_size).elements
            width = expert / (3 * spec.hidden_size) / tensor_parallel
            experts.append(_Experts(layer.mlp, part * expert, count, width))
    return _Linear(flops, matrices, tuple(experts))


def _has_sinks(spec: ModelSpec) -> bool:
    return any(isinstance(layer.mixer, Attention) and layer.mixer.sinks for layer, _ in spec.kinds_of_layers)


def _slower(kind: str, compute: float, memory: float) -> Cost:
    return Cost(kind, compute, "compute") if compute > memory else Cost(kind, memory, "bandwidth")
