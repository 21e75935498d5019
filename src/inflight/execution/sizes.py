"""Compute sizes of a model in this engine's memory, by data type and quantization."""

from __future__ import annotations

from inflight.execution.backends.matrices import GROUPS, INT8_GROUP
from inflight.execution.backends.protocol import DType, Hold, Quantization
from inflight.models import arithmetic, sequence_memory
from inflight.models.arithmetic import Packing
from inflight.models.spec import ModelSpec, WeightFormat

_VALUES = ".self_attn.v_proj.weight"
ITEM_BYTES: dict[DType, int] = {"bfloat16": 2, "float32": 4}
_SCALE_BYTES = 4  # of an output of a quantized matrix (its factor), of a head of int8 keys or values
_GROUP_SCALE_BYTES = 2  # of a group of a quantized matrix, and of its offset


def holds(quantization: Quantization) -> tuple[Hold, Hold]:
    """Return how plain matrices of layers are packed, and the output projection."""
    found: dict[Quantization, tuple[Hold, Hold]] = {
        "none": ("act", "act"),
        "int8": ("int8", "act"),
        "int8-all": ("int8", "int8"),
        "int4": ("int4", "act"),
        "int4-all": ("int4", "int4"),
        "fp8": ("fp8", "act"),
    }
    return found[quantization]


def hold_of(name: str, hold: Hold) -> Hold:
    """Return how a plain matrix of this name is packed where matrices like it are packed as `hold`.

    Beside int4 the projection to values stays in int8: it is the smallest matrix of a layer, and its error reaches
    every token that attends to the position.
    """
    return "int8" if hold == "int4" and name.endswith(_VALUES) else hold


def holds_of(model: ModelSpec, quantization: Quantization) -> tuple[Hold, Hold]:
    """Return how matrices of this model's layers are packed, and its output projection. Layers that come quantized stay
    so, in 4 bits or in 8."""
    layers, head = holds(quantization)
    came = model.weight_format
    if came is not None:
        layers = "int4" if came.bits is not None and came.bits <= 4 else "int8"
    return layers, head


def token_table_is_quantized(model: ModelSpec, quantization: Quantization) -> bool:
    """Return whether the table of layers' token inputs is packed in int8, a scale for each layer's share of a row: as
    soon as matrices of layers are quantized. It may be half of a model, and a row of it is read for each token."""
    return model.token_input is not None and holds_of(model, quantization)[0] != "act"


def packing(model: ModelSpec, dtype: DType, quantization: Quantization = "none", group_size: int = 32) -> Packing:
    """Return the bytes of an element of each kind. group_size: inputs that share a scale and an offset, of two bytes
    each, where plain matrices become int4."""
    item, came = ITEM_BYTES[dtype], model.weight_format

    def weight(hold: Hold, group: int) -> float:
        four = 0.5 + 2 * _GROUP_SCALE_BYTES / min(INT8_GROUP, group)  # a scale and an offset
        return {"act": item, "int8": 1 + _GROUP_SCALE_BYTES / INT8_GROUP, "fp8": 1, "int4": four}[hold]

    layers, head = holds_of(model, quantization)
    of_plain = holds(quantization)[0]
    experts_alone = came is not None and came.method == "mxfp4"
    head_came = None if came is None else came.head_bytes
    return Packing(
        matrix=weight(of_plain, group_size) if came is None or experts_alone else _code_bytes(came),
        head=weight(head, group_size) if head_came is None else head_came,
        table=item,
        other=4,
        matrix_scale=0 if layers == "act" else _SCALE_BYTES,
        head_scale=0 if head == "act" and head_came is None else _SCALE_BYTES,
        token_table=(
            1 + _SCALE_BYTES / model.token_input.width
            if model.token_input is not None and token_table_is_quantized(model, quantization)
            else None
        ),
        expert=_code_bytes(came) if came is not None and experts_alone else None,
        values=weight("int8", group_size) if of_plain == "int4" and (came is None or experts_alone) else None,
    )


def _code_bytes(format: WeightFormat) -> float:
    """Return the bytes of an element of a quantized matrix, with its share of its group's scale and offset."""
    if format.element_bytes is not None:
        return format.element_bytes
    group = next((size for size in GROUPS if not (format.group_size or GROUPS[0]) % size), GROUPS[-1])
    if format.bits == 4:
        element, has_offsets = 0.5, not format.symmetric and format.method != "mxfp4"
    elif format.act_order:  # quantized again, by the rule of `int8.py`
        element, has_offsets, group = 1, False, INT8_GROUP
    else:
        element, has_offsets = 1, format.symmetric is False
    numbers = 1 + has_offsets  # kernels repeat those of larger groups
    return element + numbers * _GROUP_SCALE_BYTES / min(INT8_GROUP, group)


def weight_bytes(model: ModelSpec, dtype: DType, quantization: Quantization = "none", group_size: int = 32) -> int:
    """Return the bytes of all weights in `dtype`, or some of them quantized, but for what a backend adds in padding."""
    packed = packing(model, dtype, quantization, group_size)
    return round(arithmetic.weight_bytes(model, packed) + _turned_keys(model, packed))


def step_weight_bytes(
    model: ModelSpec,
    dtype: DType,
    quantization: Quantization = "none",
    group_size: int = 32,
    tokens: int | None = None,
) -> int:
    """Return the bytes of weights that a step of so many tokens reads at least once: all but the input table, of which
    it reads rows, and of mixtures only the experts that the tokens touch (None: all)."""
    packed = packing(model, dtype, quantization, group_size)
    return round(arithmetic.step_weight_bytes(model, packed, tokens) + _turned_keys(model, packed))


def _turned_keys(model: ModelSpec, packed: Packing) -> float:
    """Return the bytes that transposed matrices (the keys' part of latent attention's matrix for keys and values) take
    beyond what is counted of them: they have other outputs, and where they come quantized they are packed as a table is
    (`Packer.heads`)."""
    found = 0.0
    for layer, count in model.kinds_of_layers:
        if layer.mixer.transposed is None or not packed.matrix_scale:
            continue
        matrices, outputs, inputs = layer.mixer.transposed
        if model.weight_format is None:
            found += count * matrices * (inputs - outputs) * packed.matrix_scale
        else:
            elements = matrices * outputs * inputs
            found += count * (elements * (packed.table - packed.matrix) - matrices * outputs * packed.matrix_scale)
    return found


def kv_bytes_per_token(model: ModelSpec, dtype: DType, quantized: bool = False) -> int:
    """Return the bytes of keys and values of one token over all layers, as long as every window shows it; quantized: in
    int8, a float32 scale for each head."""
    return round(sequence_memory.paged_kv_bytes_per_token(model, *_kv_bytes(dtype, quantized)))


def context_bytes(model: ModelSpec, dtype: DType, context: int, quantized: bool = False) -> int:
    """Return the bytes of keys and values that attention reads for one token that sees `context` tokens, windows
    minded."""
    return round(sequence_memory.read_bytes(model, context, *_kv_bytes(dtype, quantized)))


def _kv_bytes(dtype: DType, quantized: bool) -> tuple[int, int]:
    """Return the bytes of an element, and of a head's scale."""
    return (1, _SCALE_BYTES) if quantized else (ITEM_BYTES[dtype], 0)
