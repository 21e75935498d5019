"""What share of a data sheet's rates kernels and collectives reach, class by class, with a range and its source.

Knows measured shares, message sizes and links, not models. A range is the spread between machines, engines and kernel
generations; it is what a sizing's interval comes from. Figures of the classes:

- linear layers: medians of published per-layer profiles (Vidur, MLSys 2024: A100-80 and H100 SXM, Llama 7B, 8B and 70B
  under 1 to 8 GPUs, 1 to 4,096 tokens). A layer of one token takes a fixed time and then its bytes at a fixed rate:
  45 µs and 0.80 of the bandwidth on an A100, 31 µs and 0.86 on an H100 fit all seven within 4 %. Of the peak, large
  steps reach 0.71 and 0.67; small steps and small shards less, as the tables below say.
- attention over prompts: FlashAttention-2 (arXiv 2307.08691) reports 50 to 73 % of an A100's peak; paged kernels less.
- attention of decodes: bound by bandwidth; 0.60 to 0.85 of it, judged from the linear layers' share.
- launch: 126 µs a step, 4 µs a row (fitted by the BLIS simulator to served models); the host's own work between steps
  0.54 ms and 12.7 µs a row where it is not overlapped (simllm), several ms in engines that do not overlap at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.simulate.hardware import Gpu

Case = Literal["low", "typical", "high"]
_PLACE = {"low": 0, "typical": 1, "high": 2}


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
MOST_TOKENS = 4096  # of the steps that were measured
LEAST_SHARD = 50e6  # bytes in bf16


def measured_family(gpu: str) -> str | None:
    """The GPU whose measured shares count for this one; None: those of neither, only judgement."""
    return next((family for family in _MEASURED if gpu.startswith(family)), "h100" if gpu == "h200" else None)


def efficiencies(gpu: str, case: Case = "typical") -> Efficiencies:
    """Shares of the GPU of this name. low: every class at its slow end at once; high: at its fast end."""
    family = measured_family(gpu)
    ranges = {**_COMMON, **(_ELSE if family is None else _MEASURED[family])}
    return Efficiencies(**{name: figures[_PLACE[case]] for name, figures in ranges.items()})


def token_share(tokens: float) -> float:
    """Of the rate of large steps; a step of fewer tokens leaves matrix units idle."""
    return _straight_in_log(_TOKENS, tokens)


def reading_factor(tokens: float) -> float:
    """On the time that weights take to be read, as a step's tokens fill a kernel's tile."""
    return 1 + _SLOWER * min(1.0, tokens / _TILE)


def shard_share(shard_bytes: float) -> float:
    """Of the rate over large shards. shard_bytes: one layer's weights on one GPU, as bf16."""
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
    """Of one all-reduce of so many bytes over `gpus` GPUs. Ring: start + 2(n-1)/n · bytes / (share · link)."""
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
    """Gigabits per second that the network cards of so many GPUs pass, one way."""
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
