"""How a quantized checkpoint holds its matrices: what `quantization_config` says, method by method.

Knows the fields of fp8, mxfp4, AWQ, GPTQ, compressed-tensors, bitsandbytes and modelopt. Does not know how packed
tensors lie in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_MXFP4_GROUP = 32  # weights that share an exponent, by the format's definition


def weight_format(data: Mapping[str, Any]) -> WeightFormat | None:
    """None of a checkpoint that is not quantized. Raises ModelError where the field is none that can be read."""
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
    if method == "fp8":
        return WeightFormat(method, 8, block=_block(given.get("weight_block_size")))
    if method == "bitsandbytes":
        return WeightFormat(method, 4 if given.get("load_in_4bit") else 8)
    weights = _first_group(given) or given
    bits = weights.get("num_bits", weights.get("bits", weights.get("w_bit")))
    group = weights.get("group_size", weights.get("q_group_size"))
    return WeightFormat(method, _whole(bits), _whole(group))  # -1: the whole input shares a scale


def _first_group(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of compressed-tensors and modelopt: what the first group of layers says of its weights."""
    groups = given.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            return weights
    return None


def _block(value: object) -> tuple[int, int] | None:
    if not (isinstance(value, list) and len(value) == 2):
        return None
    outputs, inputs = (_whole(one) for one in value)
    return None if outputs is None or inputs is None else (outputs, inputs)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None
