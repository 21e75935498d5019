"""The reference backend: numpy, slow and readable. It runs the operations' definitions (`execution.ops`).

Activations, keys, values and weights are in bf16 or float32, everything between is float32. Over int8 keys and values,
where kernels round to 16 bits, it rounds neither queries nor probabilities.
"""

from __future__ import annotations

from inflight.execution.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
