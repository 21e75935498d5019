"""What packing the types of GGUF costs in accuracy, beside what the types themselves cost.

    python -m benchmarks.gguf_accuracy

Weights are drawn from a normal distribution and rounded to what each type can hold: plainly, to the nearest, with
scales from the largest magnitude (converters search for better ones, so that real files are better than the first
column says; what packing adds is the same). Knows the types' groups and bits; that our reader takes their blocks apart
rightly is the tests' matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inflight.execution.backends.int8 import quantize
from inflight.execution.backends.matrices import Array
from inflight.execution.checkpoints.gguf.dequantize import IQ4_MEANINGS, MXFP4_MEANINGS
from inflight.execution.checkpoints.gguf.packing import EXACT, GROUP, MERGED, fitted

ROWS, COLUMNS = 256, 2048


class Held(NamedTuple):
    """bits of a code, values of a group; of a scale (None: half precision) and whether there are offsets."""

    bits: int
    group: int
    scale_bits: int | None = None
    offsets: bool = False


TYPES = {
    "Q8_0": Held(8, 32),
    "Q6_K": Held(6, 16, 7),
    "Q5_K": Held(5, 32, 6, True),
    "Q5_1": Held(5, 32, None, True),
    "Q5_0": Held(5, 32),
    "Q4_K": Held(4, 32, 6, True),
    "Q4_1": Held(4, 32, None, True),
    "Q4_0": Held(4, 32),
    "Q3_K": Held(3, 16, 5),
    "Q2_K": Held(2, 16, 4, True),
}
TABLES = {"IQ4_NL": IQ4_MEANINGS, "MXFP4": MXFP4_MEANINGS}


def nearest(values: Array, held: Held) -> Array:
    """The weights as the type holds them, float32 of the same shape."""
    groups = values.reshape(-1, 256 // held.group, held.group)
    steps = 2**held.bits - 1
    if held.offsets:
        low = np.minimum(groups.min(axis=2), 0)
        scales = _rounded((groups.max(axis=2) - low) / steps, held.scale_bits)[..., None]
        low = -_rounded(-low, held.scale_bits)[..., None]
        whole = np.clip(np.rint((groups - low) / np.maximum(scales, 1e-9)), 0, steps)
        return (whole * scales + low).reshape(values.shape)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[..., None], 2)[..., 0]
    most = (steps + 1) // 2
    if held.bits == 8:
        scales = _rounded(np.abs(largest) / 127, None)[..., None]
    else:
        scales = -np.sign(largest)[..., None] * _rounded(np.abs(largest) / most, held.scale_bits)[..., None]
    whole = np.clip(np.rint(groups / np.where(scales == 0, 1, scales)), -most, most - 1)
    return (whole * scales).reshape(values.shape)


def _rounded(scales: Array, bits: int | None) -> Array:
    """In half precision, or in whole parts of the largest of 256 values."""
    if bits is None:
        return scales.astype(np.float16).astype(np.float32)
    parts: Array = np.maximum(scales.max(axis=-1, keepdims=True) / (2**bits - 1), 1e-9)
    return np.asarray(np.rint(scales / parts) * parts)


def of_table(values: Array, meanings: Array) -> Array:
    """The same of types whose codes stand for the numbers of a table."""
    groups = values.reshape(-1, 32)
    found, least = groups, np.full(len(groups), np.inf)
    magnitudes = np.abs(groups).max(axis=1)
    for end in (float(meanings.max()), float(-meanings.min())):
        scales = magnitudes / end
        if meanings is MXFP4_MEANINGS:
            scales = 2.0 ** np.floor(np.log2(magnitudes) - 2) / 2
        tried = scales[:, None] * meanings[np.abs(groups[..., None] / scales[:, None, None] - meanings).argmin(axis=2)]
        error = ((tried - groups) ** 2).sum(axis=1)
        found, least = np.where((error < least)[:, None], tried, found), np.minimum(error, least)
    return found.reshape(values.shape).astype(np.float32)


def packed_form(kind: str, values: Array) -> Array:
    """What the packed form stands for."""
    if kind in EXACT:
        return values
    if kind in MERGED:
        codes, scales, offsets = fitted(values.reshape(-1, GROUP))
        return (codes * scales[:, None] + offsets[:, None]).reshape(values.shape)
    codes, scales = quantize(values)
    return codes * scales[:, None]


def error(found: Array, expected: Array) -> float:
    """Relative, root of mean squares."""
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


def main() -> None:
    weights = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    print(
        "| type | packed as | the type, of weights | packing, of the type | both, of weights |\n|---|---|---|---|---|"
    )
    held = {kind: nearest(weights, one).astype(np.float32) for kind, one in TYPES.items()}
    held |= {kind: of_table(weights, meanings) for kind, meanings in TABLES.items()}
    for kind, values in held.items():
        form = packed_form(kind, values)
        name = "int8" if kind not in (*EXACT, *MERGED) else "int4"
        parts = (error(values, weights), error(form, values), error(form, weights))
        print(f"| {kind} | {name} | {' | '.join('exact' if one == 0 else f'{one:.2%}' for one in parts)} |")


if __name__ == "__main__":
    main()
