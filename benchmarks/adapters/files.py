"""Random adapters of a model's matrices, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from inflight.core.types.sampling import Adapter
from inflight.execution.packer import WeightSlice


def write_adapters(folder: Path, slices: Mapping[str, WeightSlice], count: int, rank: int) -> list[Adapter]:
    """For every matrix that there is, in half precision."""
    made = []
    for number in range(count):
        random, path = np.random.default_rng(number), folder / f"adapter-{number}"
        path.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, one in slices.items():
            module = f"base_model.model.{name.removesuffix('.weight')}"
            for which, shape in (("A", (rank, one.columns)), ("B", (one.rows, rank))):
                tensors[f"{module}.lora_{which}.weight"] = (0.01 * random.standard_normal(shape)).astype(np.float16)
        save_file(tensors, path / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
        (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        made.append(Adapter(path.name, str(path)))
    return made
