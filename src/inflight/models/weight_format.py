"""Read `quantization_config`: how a quantized checkpoint holds its matrices, method by method.

Methods are fp8, fbgemm_fp8, mxfp4, AWQ, GPTQ, compressed-tensors, bitsandbytes and modelopt, of which some are refused.
Which matrices are left plain is decided by the tensors in the file, not by the lists of names in the config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_MXFP4_GROUP = 32  # weights that share an exponent, by the format's definition
# What is read: the layouts of a method, each with its bits. "": none is named.
_READABLE: dict[str, dict[str, tuple[int, ...]]] = {
    "awq": dict.fromkeys(("", "gemm"), (4,)),
    "gptq": dict.fromkeys(("", "gptq", "gptq_v2"), (4, 8)),
    "compressed-tensors": {
        "pack-quantized": (4, 8),
        "int-quantized": (8,),
        "float-quantized": (8,),
        "naive-quantized": (8,),
    },
    "fp8": {"": (8,)},
    "fbgemm_fp8": {"": (8,)},
    "mxfp4": {"": (4,)},
    "gguf": {"": (4, 8)},
}
# Where a method names its layout: the newer field goes first.
_LAYOUT_FIELDS = {"awq": ("version", "format", "checkpoint_format"), "gptq": ("checkpoint_format", "format")}


def weight_format(data: Mapping[str, Any]) -> WeightFormat | None:
    """Return how a checkpoint is quantized; None: it is not. Raises ModelError where the field cannot be read."""
    given = data.get("quantization_config") or data.get("compression_config")
    if not given:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    if not isinstance(method, str) or len(method) > 40:
        raise ModelError(
            f"quantization_config in config.json must be an object with a quant_method, not {shown(given)}; take the "
            "config.json that belongs to the checkpoint."
        )
    if method == "mxfp4":
        return WeightFormat(method, 4, _MXFP4_GROUP)
    if method == "fbgemm_fp8":
        return WeightFormat(method, 8)  # a scale for each output, by the method's definition
    if method == "fp8":
        static = given.get("activation_scheme") == "static"
        return WeightFormat(method, 8, block=_pair(given.get("weight_block_size")), static_activations=static)
    if method == "gguf":  # as `models.gguf.config` writes it, of what a file holds
        held, head = (
            one if isinstance(one, float) else None for one in map(given.get, ("element_bytes", "head_bytes"))
        )
        return WeightFormat(method, _whole(given.get("bits")), element_bytes=held, head_bytes=head)
    if method == "bitsandbytes":
        return WeightFormat(method, 4 if given.get("load_in_4bit") else 8)
    if method == "compressed-tensors":
        return _compressed(given)
    weights = _group_weights(given)[0] if _group_weights(given) else given  # modelopt has groups of layers, too
    bits = weights.get("num_bits", weights.get("bits", weights.get("w_bit")))
    group = weights.get("group_size", weights.get("q_group_size"))
    symmetric = given.get("sym", None if given.get("zero_point") is None else not given["zero_point"])
    return WeightFormat(
        method,
        _whole(bits),
        _whole(group),  # -1: the whole input shares a scale
        symmetric=symmetric if isinstance(symmetric, bool) else None,
        act_order=given.get("desc_act") is True,
        layout="marlin" if given.get("is_marlin_format") else _name(given, *_LAYOUT_FIELDS.get(method, ("format",))),
    )


def _compressed(given: Mapping[str, Any]) -> WeightFormat:
    """Read compressed-tensors: the values on which all groups of layers agree."""
    groups = _group_weights(given)
    sparsity, strategy = given.get("sparsity_config"), _agreed(groups, "strategy")
    sparse = _name(sparsity, "format") if isinstance(sparsity, Mapping) else None
    layout = sparse if sparse not in (None, "dense") else _name(given, "format")
    symmetric, block = _agreed(groups, "symmetric"), _agreed(groups, "block_structure")
    return WeightFormat(
        "compressed-tensors",
        _whole(_agreed(groups, "num_bits")),
        _whole(_agreed(groups, "group_size")),
        block=_pair(block) if strategy in (None, "block") else None,
        symmetric=symmetric if isinstance(symmetric, bool) else None,
        act_order=_agreed(groups, "actorder") in ("group", True),
        layout="transform_config" if given.get("transform_config") else layout,
        static_activations=any(
            isinstance(taken, Mapping) and taken.get("dynamic") is False
            for taken in (one.get("input_activations") for one in _groups(given))
        ),
    )


def refuse_unreadable(format: WeightFormat) -> None:
    """Raise ModelError for a format that `execution.checkpoints` does not read, with its name and number of bits."""
    begin = f"the checkpoint is quantized ({format.method})"
    end = "take another quantization of this model, or the unquantized one (bfloat16, float16 or float32 weights)."
    layouts = _READABLE.get(format.method)
    if layouts is None:
        raise ModelError(f"{begin}, which is not supported; read are {', '.join(_READABLE)}; {end}")
    bits = layouts.get(format.layout or "")
    if bits is None:
        found = f"in the layout {format.layout}" if format.layout else "in a layout that config.json does not name"
        known = ", ".join(name for name in layouts if name) or "those without one"
        raise ModelError(f"{begin} {found}, which is not supported; read are {known}; {end}")
    if format.bits not in bits:
        found = "one number of bits for all layers" if format.bits is None else f"{format.bits} bits"
        lacks = "without" if format.bits is None else "in"
        raise ModelError(f"{begin} {lacks} {found}; read are {' and '.join(map(str, bits))} bits; {end}")


def described(format: WeightFormat) -> str:
    """Describe a format briefly, as in `gptq: 4 bits in groups of 128, in the order of activations`."""
    shared = f" in groups of {format.group_size}" if format.group_size else ""
    shared = f" in blocks of {format.block[0]} × {format.block[1]}" if format.block else shared
    order = ", in the order of activations" if format.act_order else ""
    return f"{format.method}: {format.bits} bits{shared}{order}"


def _groups(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of each group of layers, of compressed-tensors and modelopt."""
    groups = given.get("config_groups")
    return [one for one in groups.values() if isinstance(one, Mapping)] if isinstance(groups, Mapping) else []


def _group_weights(given: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = (group.get("weights") for group in _groups(given))
    return [weights for weights in found if isinstance(weights, Mapping)]


def _agreed(groups: list[Mapping[str, Any]], key: str) -> Any:
    """Return the value that all groups share; None where they differ."""
    values = [group.get(key) for group in groups]
    return values[0] if values and all(value == values[0] for value in values) else None


def _name(given: Mapping[str, Any], *keys: str) -> str | None:
    """Return the first of these fields that is a name, in lower case and cut to 40 characters."""
    found = next((given[key] for key in keys if isinstance(given.get(key), str) and given[key]), None)
    return None if found is None else found[:40].lower()


def _pair(value: object) -> tuple[int, int] | None:
    if not (isinstance(value, list) and len(value) == 2):
        return None
    outputs, inputs = (_whole(one) for one in value)
    return None if outputs is None or inputs is None else (outputs, inputs)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None
