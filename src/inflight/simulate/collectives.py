"""Seconds of collectives among the GPUs of one replica: measured tables, or the link and the network of the data sheet.

Links reach as far as their domain (a node, or the rack of an NVL72); beyond it there is the network.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from inflight.simulate.efficiency import like
from inflight.simulate.hardware import Gpu
from inflight.simulate.parallelism import Parallelism

KIB, MIB = 1024, 1024**2

# (bytes, microseconds), by GPUs of one node: vLLM's own all-reduce of bf16 in CUDA graphs, as AISimulate 0.13.0 has
# timed it (2026-10-27, Apache-2.0; vLLM 0.24, on A100 0.14). Beyond 8 MiB engines take NCCL's, which nccl-tests (APEX)
# have at half of that for 64 MiB: on Hopper and A100 0.55 of it here. Between two sizes straight in log-log, beyond the
# last one proportional.
_H100 = {
    2: ((KIB, 4.2), (64 * KIB, 4.8), (256 * KIB, 6.3), (MIB, 12), (4 * MIB, 45), (16 * MIB, 86), (64 * MIB, 258)),
    4: ((KIB, 4.6), (64 * KIB, 5.8), (256 * KIB, 11), (MIB, 19), (4 * MIB, 54), (16 * MIB, 105), (64 * MIB, 340)),
    8: ((KIB, 4.6), (64 * KIB, 7.9), (256 * KIB, 12), (MIB, 19), (4 * MIB, 51), (16 * MIB, 98), (64 * MIB, 317)),
}
_H200 = {
    2: ((KIB, 4.5), (64 * KIB, 4.8), (256 * KIB, 6.3), (MIB, 12), (4 * MIB, 43), (16 * MIB, 80), (64 * MIB, 255)),
    4: ((KIB, 4.6), (64 * KIB, 5.8), (256 * KIB, 11), (MIB, 18), (4 * MIB, 52), (16 * MIB, 99), (64 * MIB, 335)),
    8: ((KIB, 4.8), (64 * KIB, 7.9), (256 * KIB, 11), (MIB, 18), (4 * MIB, 48), (16 * MIB, 91), (64 * MIB, 309)),
}
_A100 = {
    2: ((KIB, 4.9), (64 * KIB, 5.7), (256 * KIB, 8), (MIB, 15), (4 * MIB, 90), (16 * MIB, 122), (64 * MIB, 410)),
    4: ((KIB, 5.2), (64 * KIB, 7.8), (256 * KIB, 15), (MIB, 26), (4 * MIB, 118), (16 * MIB, 158), (64 * MIB, 548)),
    8: ((KIB, 5.6), (64 * KIB, 11), (256 * KIB, 19), (MIB, 28), (4 * MIB, 129), (16 * MIB, 200), (64 * MIB, 639)),
}
_B200 = {
    2: ((KIB, 7), (64 * KIB, 7.4), (256 * KIB, 9.4), (MIB, 25), (4 * MIB, 45), (16 * MIB, 87), (64 * MIB, 280)),
    4: ((KIB, 7.1), (64 * KIB, 8.1), (256 * KIB, 18), (MIB, 24), (4 * MIB, 43), (16 * MIB, 119), (64 * MIB, 353)),
    8: ((KIB, 7.5), (64 * KIB, 9.4), (256 * KIB, 17), (MIB, 21), (4 * MIB, 39), (16 * MIB, 111), (64 * MIB, 396)),
}
_COLLECTIVES: Mapping[str, Mapping[int, Sequence[tuple[float, float]]]] = {
    "h100": _H100,
    "h200": _H200,
    "b200": _B200,
    "a100-80": _A100,
    "a100-40": _A100,
}
_LINKS = {"h100": 450, "h200": 450, "b200": 900, "a100-80": 300, "a100-40": 300}  # GB/s over which they were timed
_START = {2: 10e-6, 4: 13e-6, 8: 20e-6}  # seconds of the smallest message
_SHARE = 0.6  # of the link, by large messages: 0.54 to 0.8 over NVLink, 0.7 over PCIe
_NETWORK_SHARE = 0.7  # of the network card: two nodes of A100 took 4.89 ms for 45 MB
_HOP = 60e-6  # seconds that crossing between nodes adds
# All-to-all of experts: DeepEP on H800 (its README, 2025: 128 tokens of 7,168 numbers to 8 of 256 experts take 77 and
# 114 us within a node, 118 and 195 over 16 GPUs, 155 and 273 over 32, 173 and 314 over 64, there and back).
_EXPERT_START = 25e-6
_EXPERT_LINK, _EXPERT_NETWORK = 0.75, 0.9  # of the link, of the network card
_DISPATCH, _COMBINE = 1 + 4 / 128, 2.0  # bytes of a number on its way there, in fp8 with scales, and back in bf16
_FEW_TOKENS = 256  # of a GPU, up to which each choice is sent by itself; beyond, a node forwards to its own GPUs
_SEND = 15e-6  # seconds of the smallest message between two stages


def all_reduce_seconds(gpu: Gpu, gpus: int, message_bytes: float) -> float:
    """Return the seconds of one all-reduce over `gpus` GPUs. Ring: start + 2(n-1)/n · bytes / (share · link)."""
    if gpus == 1 or message_bytes <= 0:
        return 0.0
    if gpus > gpu.domain:
        rate = _NETWORK_SHARE * gpu.network_bytes_per_s
        return _START[8] + _HOP + 2 * (gpus - 1) / gpus * message_bytes / rate
    measured = _timed(gpu).get(gpus)
    if measured is not None:
        return _between(measured, message_bytes)
    start = _START.get(gpus, 20e-6)
    return start + 2 * (gpus - 1) / gpus * message_bytes / (_SHARE * gpu.link_bytes_per_s)


def _timed(gpu: Gpu) -> Mapping[int, Sequence[tuple[float, float]]]:
    """Return the timed all-reduces of a GPU, or of one with its kernels, over a link of the same rate."""
    for name in (gpu.name, like(gpu.name)):
        if gpu.link == "NVLink" and gpu.link_gb_per_s == _LINKS.get(name):
            return _COLLECTIVES[name]
    return {}


def expert_exchange_seconds(gpu: Gpu, gpus: int, tokens: float, top_k: int, hidden: int) -> float:
    """Return the seconds that tokens take to the experts that they chose on `gpus` GPUs, and back (dispatch, combine).

    Args:
        tokens: of each GPU.
        top_k: experts that each of them chose.
        hidden: numbers of a token.
    """
    if gpus == 1 or tokens <= 0:
        return 0.0
    domains = max(1.0, gpus / gpu.domain)
    distant = 1 - 1 / domains
    inside = top_k * (1 - distant - 1 / gpus)
    outside = top_k * distant
    if tokens > _FEW_TOKENS:
        outside = (domains - 1) * (1 - (1 - 1 / domains) ** top_k)  # one copy to each domain that is chosen
        inside = top_k * (1 - 1 / gpu.domain) if domains > 1 else (gpus - 1) * (1 - (1 - 1 / gpus) ** top_k)
    link, network = _EXPERT_LINK * gpu.link_bytes_per_s, _EXPERT_NETWORK * gpu.network_bytes_per_s
    each = tokens * hidden * max(max(0.0, inside) / link, outside / network)
    return 2 * _EXPERT_START + (_DISPATCH + _COMBINE) * each


def send_seconds(gpu: Gpu, parallelism: Parallelism, message_bytes: float) -> float:
    """Return the seconds of a message from one stage of a pipeline to the next, of which each GPU sends its part. A
    stage that fills a domain sends over the network."""
    within = parallelism.gpus <= gpu.domain
    rate = _SHARE * gpu.link_bytes_per_s if within else _NETWORK_SHARE * gpu.network_bytes_per_s
    return _SEND + message_bytes / parallelism.tensor / rate


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
