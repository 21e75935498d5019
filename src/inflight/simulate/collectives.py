"""Seconds of collectives among the GPUs of one replica: measured tables, or a ring over the link of the data sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from inflight.simulate.hardware import Gpu

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
