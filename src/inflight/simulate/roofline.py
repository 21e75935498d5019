"""A step model from a model's shape and a GPU's data sheet, where no step was measured.

Kernels run one after the other, so the time of each class of work is max(operations / rate, bytes / bandwidth), and
the classes are added (Williams et al., "Roofline", 2009). docs/planning.md has the formulas. Embedding look-ups, the
gathering of several GPUs' logits and sampling are not counted.

Kernels and collectives reach a share of the data sheet's rates. Each share is a range over machines, engines and kernel
generations, from which the interval of a sizing comes:

- linear layers: medians of published per-layer profiles (Vidur, MLSys 2024: A100-80 and H100 SXM, Llama 7B, 8B and 70B
  under 1 to 8 GPUs, 1 to 4,096 tokens). A layer of one token takes a fixed time and then its bytes at a fixed rate:
  45 µs and 0.80 of the bandwidth on an A100, 31 µs and 0.86 on an H100 fit all seven within 4 %.
- attention over prompts: FlashAttention-2 (arXiv 2307.08691) reports 50 to 73 % of an A100's peak; paged kernels less.
- attention of decodes: bandwidth-bound; estimated from the linear layers' share.
- launch: 126 µs a step, 4 µs a row (fitted by the BLIS simulator to served models); the host's own work between steps
  0.54 ms and 12.7 µs a row where it is not overlapped (simllm), several ms in engines that do not overlap at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.core.types.features import Features
from inflight.models.arithmetic import layer_flops, layer_matrix_parameters, matrix_parameters, table_parameters
from inflight.models.parts import Mlp
from inflight.models.sequence_memory import state_bytes
from inflight.models.spec import ModelSpec
from inflight.simulate.hardware import ITEM_BYTES, WEIGHT_BYTES, Gpu, Precision
from inflight.simulate.tensor_parallel import cache_shards, check_tensor_parallel

Case = Literal["low", "typical", "high"]
_CASE_INDEX = {"low": 0, "typical": 1, "high": 2}


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """Shares of peak or bandwidth, from 0 to 1; times in seconds.

    linear_compute: of large steps over large shards. all_reduce: factor on measured collective times. layer_launch:
    fixed time of a layer. step_launch, row_launch: of a step, and of each of its rows, host work included.
    """

    linear_compute: float
    linear_memory: float
    prefill_compute: float
    decode_compute: float
    decode_memory: float
    all_reduce: float
    layer_launch: float
    step_launch: float
    row_launch: float


# (low, typical, high), where low is the slowest
_COMMON = {
    "prefill_compute": (0.35, 0.50, 0.65),
    "decode_compute": (0.30, 0.40, 0.50),
    "decode_memory": (0.60, 0.75, 0.85),
    "all_reduce": (1.3, 1.0, 0.6),  # engines' own one-shot kernels beat the collectives library at small sizes
    "step_launch": (3e-3, 0.67e-3, 0.13e-3),
    "row_launch": (30e-6, 16.7e-6, 4e-6),
}
_MEASURED = {
    "a100": {
        "linear_compute": (0.64, 0.71, 0.74),
        "linear_memory": (0.74, 0.80, 0.84),
        "layer_launch": (55e-6, 45e-6, 30e-6),
    },
    "h100": {
        "linear_compute": (0.60, 0.67, 0.72),
        "linear_memory": (0.78, 0.86, 0.90),
        "layer_launch": (45e-6, 31e-6, 20e-6),
    },
}
_ELSE = {
    "linear_compute": (0.50, 0.65, 0.72),
    "linear_memory": (0.68, 0.80, 0.88),
    "layer_launch": (60e-6, 40e-6, 20e-6),
}
# share of the large-step rate that steps of so many tokens reach (A100, Llama-3-8B; between them straight in log2)
_TOKENS = ((32, 0.50), (64, 0.60), (128, 0.70), (256, 0.92), (512, 0.98), (1024, 1.0))
# by how much reading weights slows down from one token to TILE of them (the same profile: 0.26 ms a layer become 0.31)
_TILE, _SLOWER = 64, 0.17
# share of the large-shard rate, by bytes in bf16 of one layer's weights on one GPU (70B and 7B under 1 to 8 GPUs)
_SHARDS = ((50e6, 0.65), (200e6, 0.86), (430e6, 0.95), (850e6, 0.96), (1700e6, 1.0))
MAX_MEASURED_TOKENS = 4096  # of the steps that were measured
MIN_SHARD_BYTES = 50e6  # bytes in bf16


def measured_family(gpu: str) -> str | None:
    """Return the GPU whose measured shares are used for this one; None: estimates."""
    return next((family for family in _MEASURED if gpu.startswith(family)), "h100" if gpu == "h200" else None)


def efficiencies(gpu: str, case: Case = "typical") -> Efficiencies:
    """Return the shares of a GPU. low: every class at its slow end at once; high: at its fast end."""
    family = measured_family(gpu)
    ranges = {**_COMMON, **(_ELSE if family is None else _MEASURED[family])}
    return Efficiencies(**{name: figures[_CASE_INDEX[case]] for name, figures in ranges.items()})


def token_share(tokens: float) -> float:
    """Return the share of the rate of large steps; a step of fewer tokens leaves matrix units idle."""
    return _straight_in_log(_TOKENS, tokens)


def reading_factor(tokens: float) -> float:
    """Return the factor on the time to read weights, as a step's tokens fill a kernel's tile."""
    return 1 + _SLOWER * min(1.0, tokens / _TILE)


def shard_share(shard_bytes: float) -> float:
    """Return the share of the rate over large shards. shard_bytes: one layer's weights on one GPU, as bf16."""
    return _straight_in_log(_SHARDS, shard_bytes)


def _straight_in_log(table: Sequence[tuple[float, float]], at: float) -> float:
    if at <= table[0][0]:
        return table[0][1]
    for (left, low), (right, high) in itertools.pairwise(table):
        if at <= right:
            return low + (high - low) * math.log(at / left) / math.log(right / left)
    return table[-1][1]


KIB, MIB = 1024, 1024**2

# (bytes, microseconds), by GPUs of one node. H100, H200: nccl-tests in fp16 (APEX); A100: DGX medians (Vidur), whose
# smallest sizes are noisy: there the H100's are taken. Between two sizes straight in log-log, beyond the last one
# proportional.
_H100 = {
    2: ((KIB, 8), (64 * KIB, 9), (256 * KIB, 10), (MIB, 24), (4 * MIB, 33), (16 * MIB, 79), (64 * MIB, 247)),
    4: ((KIB, 11), (64 * KIB, 13), (256 * KIB, 13), (MIB, 20), (4 * MIB, 50), (16 * MIB, 98), (64 * MIB, 324)),
    8: ((KIB, 15), (64 * KIB, 20), (256 * KIB, 21), (MIB, 34), (4 * MIB, 52), (16 * MIB, 122), (64 * MIB, 326)),
}
_H200 = {
    2: ((KIB, 6), (64 * KIB, 7), (256 * KIB, 8), (MIB, 15), (4 * MIB, 32), (16 * MIB, 80), (64 * MIB, 249)),
    4: ((KIB, 9), (64 * KIB, 11), (256 * KIB, 11), (MIB, 18), (4 * MIB, 41), (16 * MIB, 98), (64 * MIB, 326)),
    8: ((KIB, 15), (64 * KIB, 18), (256 * KIB, 19), (MIB, 25), (4 * MIB, 49), (16 * MIB, 123), (64 * MIB, 374)),
}
_A100 = {
    2: ((KIB, 8), (0.7e6, 26), (2.8e6, 62), (11e6, 117), (45e6, 312)),
    4: ((KIB, 11), (0.7e6, 26), (2.8e6, 67), (11e6, 159), (45e6, 420)),
    8: ((KIB, 15), (0.7e6, 34), (2.8e6, 77), (11e6, 195), (45e6, 479)),
}
_COLLECTIVES: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]] = {
    "h100": _H100,
    "h200": _H200,
    "a100-80": _A100,
    "a100-40": _A100,
}
_START = {2: 10e-6, 4: 13e-6, 8: 20e-6}  # seconds of the smallest message
_SHARE = 0.6  # of the link, by large messages: 0.54 to 0.8 over NVLink, 0.7 over PCIe
_NETWORK_SHARE = 0.7  # of the network card: two nodes of A100 took 4.89 ms for 45 MB
_HOP = 60e-6  # seconds that crossing between nodes adds


def all_reduce_seconds(gpu: Gpu, gpus: int, message_bytes: float) -> float:
    """Return the seconds of one all-reduce over `gpus` GPUs. Ring: start + 2(n-1)/n · bytes / (share · link)."""
    if gpus == 1 or message_bytes <= 0:
        return 0.0
    if gpus > gpu.node_gpus:
        rate = network_gbps(gpu) * 1e9 / 8
        return _START[8] + _HOP + 2 * (gpus - 1) / gpus * message_bytes / rate
    measured = _COLLECTIVES.get(gpu.name, {}).get(gpus)
    if measured is not None:
        return _between(measured, message_bytes)
    start = _START.get(gpus, 20e-6)
    return start + 2 * (gpus - 1) / gpus * message_bytes / (_SHARE * gpu.link_bytes_per_s)


def network_gbps(gpu: Gpu, gpus: int = 1) -> float:
    """Return the net gigabits per second of the network cards of so many GPUs, one way."""
    return 8 * _NETWORK_SHARE * gpu.between_nodes_gb_per_s * gpus


def _between(measured: Sequence[tuple[float, float]], size: float) -> float:
    if size <= measured[0][0]:
        return measured[0][1] * 1e-6
    for (left, low), (right, high) in itertools.pairwise(measured):
        if size <= right:
            share = math.log(size / left) / math.log(right / left)
            return float(low * (high / low) ** share) * 1e-6
    last, microseconds = measured[-1]
    return microseconds * 1e-6 * size / last


QUERY_TILE = 128  # queries that share one reading of keys and values
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
    ):
        """Make the model of a GPU, or of several by tensor parallelism.

        Args:
            weights, kv: their precisions.
            case: the end of the efficiencies' ranges.
            block_size: tokens of the KV blocks that are copied when sequences are swapped.
        """
        check_tensor_parallel(spec, tensor_parallel)
        self.spec, self.gpu, self.tensor_parallel = spec, gpu, tensor_parallel
        self.weights, self.kv, self.case = weights, kv, case
        self._shares = efficiencies(gpu.name, case)
        self._peak = gpu.flops_per_s(weights)
        self._layers = len(spec.layers)
        self._weights = _linear_layers(spec, tensor_parallel)
        self._shard = 2 * matrix_parameters(spec) / self._layers / tensor_parallel
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
        return (
            self._linear(features),
            self._prefill_attention(features),
            self._decode_attention(features),
            self._logits(features),
            self._exchange(features),
            self._launch(features),
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
        flops, read = tokens * self._weights.flops, self._weights.matrices + self._weights.touched(tokens)
        rate = self._peak * self._shares.linear_compute * token_share(tokens) * shard_share(self._shard)
        bandwidth = self.gpu.bytes_per_s * self._shares.linear_memory / reading_factor(tokens)
        return _slower("linear", flops / rate, read * WEIGHT_BYTES[self.weights] / bandwidth)

    def _prefill_attention(self, features: Features) -> Cost:
        # Attention computes in bf16, whatever the precision of weights and cache.
        pairs = [(one, one.seen(features.prefill_context, features.tokens)) for one in self._caches]
        flops = sum(one.prompt_flops * seen for one, seen in pairs)
        read = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv] / QUERY_TILE
        rate = self.gpu.flops_per_s("bf16") * self._shares.prefill_compute
        return _slower("prefill attention", flops / rate, read / (self.gpu.bytes_per_s * self._shares.decode_memory))

    def _decode_attention(self, features: Features) -> Cost:
        pairs = [(one, one.seen(features.decode_context, features.rows)) for one in self._caches]
        flops = sum(one.decode_flops * seen for one, seen in pairs)
        moved = sum(one.read * seen for one, seen in pairs) * ITEM_BYTES[self.kv]
        moved += self._token_bytes * features.tokens + self._state_bytes * features.rows
        rate = self.gpu.flops_per_s("bf16") * self._shares.decode_compute
        return _slower("decode attention", flops / rate, moved / (self.gpu.bytes_per_s * self._shares.decode_memory))

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

    def _launch(self, features: Features) -> Cost:
        shares = self._shares
        fixed = shares.step_launch + shares.layer_launch * self._layers + shares.row_launch * features.rows
        copied = features.moved_blocks * self._block_bytes / (self.gpu.host_gb_per_s * 1e9)
        return Cost("launch", fixed + copied, "launch")


@dataclass(frozen=True, slots=True)
class _Linear:
    """The layers' matrices on one GPU. flops: of a token. matrices: elements that every step reads. experts: of each
    kind of layer with experts its MLP, and the elements of one expert over all layers of the kind."""

    flops: float
    matrices: float
    experts: tuple[tuple[Mlp, float], ...]

    def touched(self, tokens: int) -> float:
        """Return the elements of the experts that so many tokens use."""
        return sum(mlp.touched_experts(tokens) * elements for mlp, elements in self.experts)


def _linear_layers(spec: ModelSpec, tensor_parallel: int) -> _Linear:
    flops = matrices = 0.0
    experts = []
    for layer, count in spec.kinds_of_layers:
        part = count / tensor_parallel
        flops += part * layer_flops(spec, layer)
        matrices += part * layer_matrix_parameters(spec, layer, 0)
        if layer.mlp.experts:
            experts.append((layer.mlp, part * layer.mlp.expert_weights(spec.hidden_size).elements))
    return _Linear(flops, matrices, tuple(experts))


def _slower(kind: str, compute: float, memory: float) -> Cost:
    return Cost(kind, compute, "compute") if compute > memory else Cost(kind, memory, "bandwidth")
