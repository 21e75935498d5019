"""Fields of `quantization_config`, and which of it is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat
from inflight.models.weight_format import described, refuse_unreadable, weight_format


def read(method: str, **fields: Any) -> WeightFormat:
    found = weight_format({"quantization_config": {"quant_method": method, **fields}})
    assert found is not None
    return found


def compressed(*weights: dict[str, Any], **fields: Any) -> WeightFormat:
    groups = {f"group_{number}": {"weights": one} for number, one in enumerate(weights)}
    return read("compressed-tensors", config_groups=groups, **{"format": "pack-quantized"} | fields)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        (read("awq", bits=4, zero_point=True, version="GEMM"), WeightFormat("awq", 4, symmetric=False, layout="gemm")),
        (
            read("gptq", bits=4, group_size=128, desc_act=True, sym=True, checkpoint_format="gptq_v2"),
            WeightFormat("gptq", 4, 128, symmetric=True, act_order=True, layout="gptq_v2"),
        ),
        (read("fp8", activation_scheme="static"), WeightFormat("fp8", 8, static_activations=True)),
        (
            compressed({"num_bits": 4, "group_size": 32, "symmetric": False, "actorder": "group"}),
            WeightFormat("compressed-tensors", 4, 32, symmetric=False, act_order=True, layout="pack-quantized"),
        ),
        (
            compressed(
                {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
                format="float-quantized",
                sparsity_config={"format": "dense"},
            ),
            WeightFormat("compressed-tensors", 8, block=(128, 128), layout="float-quantized"),
        ),
    ],
)
def test_what_is_said_is_read(format: WeightFormat, expected: WeightFormat) -> None:
    assert format == expected
    refuse_unreadable(format)


def test_scales_of_activations_are_noticed() -> None:
    for dynamic in (True, False):
        groups = {"a": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8, "dynamic": dynamic}}}
        assert read("compressed-tensors", config_groups=groups).static_activations is not dynamic


@pytest.mark.parametrize(
    ("format", "sentence"),
    [
        (read("bitsandbytes", load_in_4bit=True), r"quantized \(bitsandbytes\), which is not supported; read are awq"),
        (read("gptq"), r"quantized \(gptq\) without one number of bits for all layers; read are 4 and 8 bits"),
        (read("gptq", bits=3), "in 3 bits; read are 4 and 8 bits; take another quantization"),
        (read("gptq", bits=4, is_marlin_format=True), "in the layout marlin, which .* read are gptq, gptq_v2"),
        (read("awq", bits=8), "in 8 bits; read are 4 bits"),
        (read("awq", bits=4, version="gemv"), "in the layout gemv, which is not supported; read are gemm"),
        (read("awq", bits=[4] * 1000), "without one number of bits"),
        (compressed({"num_bits": 4}, format="nvfp4-pack-quantized"), "in the layout nvfp4-pack-quantized"),
        (compressed({"num_bits": 4}, format=None), "in a layout that config.json does not name"),
        (compressed({"num_bits": 4}, {"num_bits": 8}), "without one number of bits for all layers"),
        (compressed({"num_bits": 4}, sparsity_config={"format": "sparse-24-bitmask"}), "layout sparse-24-bitmask"),
        (compressed({"num_bits": 4}, transform_config={"config_groups": {"u": {}}}), "in the layout transform_config"),
    ],
)
def test_what_is_not_read_is_named(format: WeightFormat, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as raised:
        refuse_unreadable(format)
    assert len(str(raised.value)) < 400


def test_a_format_in_words() -> None:
    words = described(read("gptq", bits=4, group_size=128, desc_act=True))
    assert words == "gptq: 4 bits in groups of 128, in the order of activations"
    assert described(read("fp8", weight_block_size=[128, 64])) == "fp8: 8 bits in blocks of 128 × 64"
