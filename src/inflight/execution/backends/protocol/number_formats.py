"""How numbers are held: what weights, keys, values and activations are in memory.

`dtype` is "bfloat16" or "float32" and names how weights, keys, values and activations (`act`) are held; numpy has no
bfloat16, so bf16 arrays are uint16 arrays of the upper half of a float32. The residual stream, norm weights, biases,
accumulators and logits are always float32. Where an operation turns float32 into `act` it rounds to nearest even.

A weight matrix may be held in int8 beside either of them, whole numbers with a scale for each output, or in int4,
codes with a scale and maybe an offset for each group of inputs. A product then quantizes each token of x to int8 too,
with a scale of its own (`int8.py` and `int4.py` have the rules), and multiplies whole numbers. Keys and values may be
int8 (`KVShape.quantized`). On a GPU both may be in fp8 instead, E4M3 with such scales, and what meets the weights is
quantized to it. Everything else, `act` included, stays as it is.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
DType = Literal["bfloat16", "float32"]
# Which plain matrices a model's loader quantizes: none, those of the layers, or the output projection too, and with it
# a tied embedding table.
Quantization = Literal["none", "int8", "int8-all", "int4", "int4-all", "fp8"]
Hold = Literal["act", "int8", "int4", "fp8"]  # how plain numbers are packed; fp8 where a backend packs it
