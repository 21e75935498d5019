"""Mix channels before they are quantized to int8, so that an outlier does not take their scale: those of keys and
queries, and the inputs of spans of plain weights and of the activations that meet them (`grouped.py`).

Trained models have keys with a few large channels. One scale for a whole key then leaves the other channels few steps:
of Gemma 3 270M and SmolLM2 that was nine tenths of what keys and values in int8 cost. A Walsh-Hadamard transform makes
sums of all channels with signs, so that a large one is spread evenly, and scalar products stay as they are (Ashkboos et
al., "QuaRot", arXiv 2404.00456).

A head of D numbers is transformed in runs of n, the largest power of two that divides D. Stage s = 0 … log2(n) - 1
takes numbers a, b of a run that stand 2^s from each other to a + b, a - b, in float32. Keys are then multiplied by
2^-⌊log2(n) / 2⌋, queries by 2^-⌈log2(n) / 2⌉: together 1 / n, by which q · k has grown, and exact. The kernels
(`native/gemm/quantize.h`, `torch/kernels/functions.py`) follow it to the last bit. Of
products weights are mixed as keys are, x as queries.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def run_length(width: int) -> int:
    """Return how many neighbouring numbers of a head of `width` are mixed with each other."""
    return width & -width


def mixing_factor(width: int, is_query: bool) -> float:
    """Return the power of two by which a transformed key or query is multiplied."""
    stages = run_length(width).bit_length() - 1
    return float(2.0 ** -((stages + is_query) // 2))


def mixed_channels(heads: Array, is_query: bool) -> Array:
    """Return each head float32[..., D] transformed."""
    width, distance = heads.shape[-1], 1
    mixed = heads.astype(np.float32)
    while distance < run_length(width):
        pairs = mixed.reshape(*heads.shape[:-1], width // (2 * distance), 2, distance)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        mixed = np.stack([first + second, first - second], axis=-2).reshape(heads.shape)
        distance *= 2
    return mixed * np.float32(mixing_factor(width, is_query))
