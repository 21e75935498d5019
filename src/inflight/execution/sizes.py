"""What a model takes as this engine holds it: the parts of its layers, and bytes by data type and quantization.

Knows which elements are packed in what (matrices in the backend's type, int8, or as a checkpoint's are quantized; norms
and biases in float32) and that every layer keeps all positions, windows or not. The counting is `models.arithmetic`.
"""

from __future__ import annotations

from inflight.execution.backends.matrices import GROUPS
from inflight.execution.backends.protocol import DType, Quantization
from inflight.models import arithmetic
from inflight.models.arithmetic import Packing
from inflight.models.errors import ModelError
from inflight.models.spec import Attention, Dense, LayerSpec, ModelSpec, WeightFormat

_ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float32": 4}
_SCALE_BYTES = 4  # of an output of a quantized matrix, of a head of int8 keys or values
_GROUP_SCALE_BYTES = 2  # of a group of an int4 matrix, and of its offset


def parts(layer: LayerSpec) -> tuple[Attention, Dense]:
    """The attention and the MLP of a layer that the decoder computes. Raises ModelError for any other layer."""
    if isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Dense):
        return layer.mixer, layer.mlp
    raise ModelError(
        f"layers of {type(layer.mixer).__name__} and {type(layer.mlp).__name__} are described, but not computed by "
        "this decoder; take a model of a dense family."
    )


def packing(dtype: DType, quantization: Quantization = "none", format: WeightFormat | None = None) -> Packing:
    """format: of a checkpoint whose layers come quantized, and are held as they come."""
    item = _ITEM_BYTES[dtype]
    layers, head = quantization != "none" or format is not None, quantization == "int8-all"
    return Packing(
        matrix=_code_bytes(format) if format is not None else 1 if layers else item,
        head=1 if head else item,
        table=item,
        other=4,
        matrix_scale=_SCALE_BYTES if layers else 0,
        head_scale=_SCALE_BYTES if head else 0,
    )


def _code_bytes(format: WeightFormat) -> float:
    """Of an element of a matrix that comes quantized, its share of its group's scale and offset included."""
    if format.bits != 4:
        return 1
    group = next((size for size in GROUPS if not (format.group_size or GROUPS[0]) % size), GROUPS[-1])
    numbers = 1 if format.symmetric or format.method == "mxfp4" else 2
    return 0.5 + numbers * _GROUP_SCALE_BYTES / group


def weight_bytes(model: ModelSpec, dtype: DType, quantization: Quantization = "none") -> int:
    """Bytes of all weights held in `dtype`, or some of them in int8, but for what a backend adds in padding."""
    return round(arithmetic.weight_bytes(model, packing(dtype, quantization, model.weight_format)))


def step_weight_bytes(model: ModelSpec, dtype: DType, quantization: Quantization = "none") -> int:
    """Bytes of weights that a decode step reads at least once: all but the input table, of which it reads rows."""
    return round(arithmetic.step_weight_bytes(model, packing(dtype, quantization, model.weight_format)))


def kv_bytes_per_token(model: ModelSpec, dtype: DType, quantized: bool = False) -> int:
    """Bytes of keys and values of one token over all layers; quantized: in int8, a float32 scale for each head."""
    return round(arithmetic.paged_kv_bytes_per_token(model, *_kv_bytes(dtype, quantized)))


def context_bytes(model: ModelSpec, dtype: DType, context: int, quantized: bool = False) -> int:
    """Bytes of keys and values that attention reads for one token that sees `context` tokens, windows minded."""
    return round(arithmetic.kept_bytes(model, context, *_kv_bytes(dtype, quantized)))


def _kv_bytes(dtype: DType, quantized: bool) -> tuple[int, int]:
    """Of an element, and of the scale of a head."""
    return (1, _SCALE_BYTES) if quantized else (_ITEM_BYTES[dtype], 0)
