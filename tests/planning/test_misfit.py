"""Models that fit on no machine: the nearest layouts, and advice that takes less memory than the present formats."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.models.known import read_model
from inflight.planning.machine import Hardware
from inflight.planning.misfit import NEAREST, does_not_fit
from inflight.planning.parallelisms import machines_for
from inflight.simulate.hardware import find_gpu

LONGEST = 4000


def refusal(model: str, gpu: str, **formats: Any) -> str:
    hardware = Hardware(model=read_model(model), gpu=find_gpu(gpu), **formats)
    return does_not_fit(machines_for(hardware, 1000.0, LONGEST).fitting, LONGEST)


def test_the_nearest_of_many_layouts_are_named() -> None:
    said = refusal("glm-4.5", "rtx-4090")
    assert " layouts; the nearest are: " in said
    assert said.count("weights take") == NEAREST
    hardware = Hardware(model=read_model("glm-4.5"), gpu=find_gpu("rtx-4090"))
    least = min(
        one.memory.weight_bytes for one in machines_for(hardware, 1000.0, LONGEST).fitting if one.memory is not None
    )
    assert f"weights take {least / 1e9:.1f} of" in said


@pytest.mark.parametrize(
    ("formats", "advice"),
    [
        ({}, "Take GPUs with more memory, --weights fp8, int8 or int4, or --kv fp8."),
        ({"kv": "int8"}, "Take GPUs with more memory, or --weights fp8, int8 or int4."),
        ({"weights": "fp8"}, "Take GPUs with more memory, --weights int4, or --kv fp8."),
        ({"weights": "int8", "kv": "fp8"}, "Take GPUs with more memory, or --weights int4."),
        ({"weights": "int4"}, "Take GPUs with more memory, or --kv fp8."),
        ({"weights": "nvfp4", "kv": "fp8"}, "Take GPUs with more memory."),
    ],
)
def test_only_formats_of_fewer_bits_are_advised(formats: dict[str, Any], advice: str) -> None:
    assert refusal("llama-3.1-405b", "rtx-3090", **formats).endswith(advice)
