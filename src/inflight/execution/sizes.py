"""What a model takes as this engine holds it: the parts of its layers, and bytes by data type and quantization.

Knows which elements are packed in what (matrices in the backend's type or int8, norms and biases in float32). The
counting is `models.arithmetic`, and which layers keep only their window `kv_groups`.
"""

from __future__ import annotations

from inflight.execution.backends.protocol import DType, Quantization
from inflight.models import arithmetic
from inflight.models.arithmetic import Packing
from inflight.models.errors import ModelError
from inflight.models.spec import Attention, Dense, LayerSpec, ModelSpec

_ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float32": 4}
_SCALE_BYTES = 4  # of an output of an int8 matrix, of a head of int8 keys or values


def parts(layer: LayerSpec) -> tuple[Attention, Dense]:
    """The attention and the MLP of a layer that the decoder computes. Raises ModelError for any other layer."""
    if isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Dense):
        return layer.mixer, layer.mlp
    raise ModelError(
        f"layers of {type(layer.mixer).__name__} and {type(layer.mlp).__name__} are described, but not computed by "
        "this decoder; take a model of a dense family."
    )


def packing(dtype: DType, quantization: Quantization = "none") -> Packing:
    item = _ITEM_BYTES[dtype]
    layers, head = quantization != "none", quantization == "int8-all"
    return Packing(
        matrix=1 if layers else item,
        head=1 if head else item,
        table=item,
        other=4,
        matrix_scale=_SCALE_BYTES if layers else 0,
        head_scale=_SCALE_BYTES if head else 0,
    )


def weight_bytes(model: ModelSpec, dtype: DType, quantization: Quantization = "none") -> int:
    """Bytes of all weights held in `dtype`, or some of them in int8, but for what a backend adds in padding."""
    return round(arithmetic.weight_bytes(model, packing(dtype, quantization)))


def step_weight_bytes(model: ModelSpec, dtype: DType, quantization: Quantization = "none") -> int:
    """Bytes of weights that a decode step reads at least once: all but the input table, of which it reads rows."""
    return round(arithmetic.step_weight_bytes(model, packing(dtype, quantization)))


def kv_bytes_per_token(model: ModelSpec, dtype: DType, quantized: bool = False) -> int:
    """Bytes of keys and values of one token over all layers, as long as every window shows it; quantized: in int8, a
    float32 scale for each head."""
    return round(arithmetic.paged_kv_bytes_per_token(model, *_kv_bytes(dtype, quantized)))


def context_bytes(model: ModelSpec, dtype: DType, context: int, quantized: bool = False) -> int:
    """Bytes of keys and values that attention reads for one token that sees `context` tokens, windows minded."""
    return round(arithmetic.kept_bytes(model, context, *_kv_bytes(dtype, quantized)))


def _kv_bytes(dtype: DType, quantized: bool) -> tuple[int, int]:
    """Of an element, and of the scale of a head."""
    return (1, _SCALE_BYTES) if quantized else (_ITEM_BYTES[dtype], 0)
