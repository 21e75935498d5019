"""How numbers are held: what weights, keys, values and activations are in memory.

`dtype` is "bfloat16" or "float32" and names how weights, keys, values and activations (`act`) are held; numpy has no
bfloat16, so bf16 arrays are uint16 arrays of the upper half of a float32. The residual stream, norm weights, biases,
accumulators and logits are always float32. Where an operation turns float32 into `act` it rounds to nearest even.

A weight matrix may be held in int8 or int4 beside either of them: whole numbers of 8 bits or codes of 4 with a scale
and maybe an offset for each group of inputs, or int8 as a checkpoint has it with one scale for each output. How x meets
such a matrix depends on the device:

- A CPU quantizes x to int8 with a scale for each 32 inputs of a token, and multiplies whole numbers (`grouped.py` has
  the rule). Where plain weights become int8, both are mixed by spans before, so that outliers cost less.
- A GPU leaves x in `act` and widens the weights where they are multiplied. It quantizes x to int8, with one scale for
  each token, only where the weights have one scale for each output.

Keys and values may be int8 (`KVShape.quantized`). On a GPU weights, keys and values may be in fp8 instead: E4M3, with
one scale for each output, or for each token and head; x is then quantized to fp8 by token. Everything else, `act`
included, stays as it is.
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
