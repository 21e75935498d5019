"""Formulas that several operations share: float32 arrays → float32 arrays, without rounding to `act`.

sigmoid(x) is 1 / (1 + e⁻ˣ); where x · sigmoid(y) is needed, it is formed as x / (1 + e⁻ʸ), which rounds once less.
"""

from __future__ import annotations

import math

import numpy as np

from inflight.execution.backends.protocol import Array, Gating, Nonlinearity


def sigmoid(x: Array) -> Array:
    """1 / (1 + e⁻ˣ)."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def times_sigmoid(x: Array, y: Array) -> Array:
    """x · sigmoid(y)."""
    with np.errstate(over="ignore"):
        found: Array = x / (np.float32(1) + np.exp(-y))
    return found


def softmax(x: Array) -> Array:
    """float32[X] → eˣ / Σ eˣ, with the largest subtracted from each exponent first."""
    powers = np.exp(x - x.max())
    return np.asarray(powers / powers.sum(), np.float32)


def soft_capped(x: Array, cap: float) -> Array:
    """c · tanh(x / c): as x near 0, and never beyond c (Gemma Team, "Gemma 2", arXiv 2408.00118)."""
    capped: Array = np.float32(cap) * np.tanh(x / np.float32(cap))
    return capped


def activated(x: Array, activation: Nonlinearity, parameters: Array | None = None) -> Array:
    """Apply the activation function of that name.

    silu       x · sigmoid(x)                                                       arXiv 1702.03118
    gelu       x / 2 · (1 + erf(x / √2))                                            arXiv 1606.08415
    gelu_tanh  x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³))                        arXiv 1606.08415
    relu       max(x, 0)
    relu2      max(x, 0)²                                                           arXiv 2109.08668
    tanh       tanh(x)
    xielu      x / 2 + (p · x² where x > 0, else n · (exp(min(x, -10⁻⁶)) - 1 - x))  arXiv 2411.13010

    parameters: float32[2], p and n.
    """
    if activation == "silu":
        return times_sigmoid(x, x)
    if activation == "gelu_tanh":
        return times_sigmoid(x, np.float32(2 * math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3))
    if activation == "gelu":
        return np.asarray(np.float32(0.5) * x * (1 + _erf(x / np.float32(math.sqrt(2)))), np.float32)
    if activation == "relu":
        return np.asarray(np.maximum(x, np.float32(0)))
    if activation == "tanh":
        return np.asarray(np.tanh(x))
    if activation == "relu2":
        return np.asarray(np.square(np.maximum(x, np.float32(0))))
    assert parameters is not None
    above, below = parameters
    bent = np.where(x > 0, above * x * x, below * (np.expm1(np.minimum(x, np.float32(-1e-6))) - x))
    return np.asarray(bent + np.float32(0.5) * x, np.float32)


def _erf(x: Array) -> Array:
    """2/√π · ∫ e^(-t²) dt from 0 to x."""
    found: Array = np.vectorize(math.erf, otypes=[np.float32])(x) if x.size else x
    return found


def gated(both: Array, gating: Gating | Nonlinearity) -> Array:
    """float32[S, 2F], the gates first → float32[S, F] = activation(gate) · up (Shazeer, "GLU Variants Improve
    Transformer", arXiv 2002.05202), or as gpt-oss has it,

    clamped_swiglu    g · sigmoid(1.702 · g) · (u + 1)    with g = min(gate, 7) and u = up, from -7 to 7
    """
    gate, up = np.split(both, 2, axis=1)
    if gating == "clamped_swiglu":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        gate, up = times_sigmoid(gate, np.float32(1.702) * gate), up + 1
    else:
        gate = activated(gate, gating)
    return np.asarray(gate * up)


def rms_normed(x: Array, weight: Array, eps: float) -> Array:
    """float32[…, N] → x / √(mean(x²) + ε) · weight, weight float32[N] (Zhang and Sennrich, arXiv 1910.07467)."""
    mean = np.mean(np.square(x, dtype=np.float32), axis=-1, keepdims=True, dtype=np.float32)
    return (x / np.sqrt(mean + np.float32(eps)) * weight).astype(np.float32)


def parts_normed(x: Array, weight: Array | None, eps: float) -> Array:
    """Apply the RMS norm to equal parts of a row, each by itself: a weight float32[N / n] norms n of them, one
    float32[N] the whole, which may be several heads. Rows without a weight stay as they are."""
    return x if weight is None else rms_normed(x.reshape(-1, len(weight)), weight, eps).reshape(x.shape)
