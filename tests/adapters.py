"""Random low-rank adapters of a model folder, as PEFT saves them.

Knows PEFT's names. Their numbers are large enough that every answer is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: Path, seed: int = 0, rank: int = 4, targets: Sequence[str] = TARGETS, **config: Any
) -> Path:
    """For the linear modules of these names. config: what else adapter_config.json says."""
    random, tensors = np.random.default_rng(seed), {}
    for name, (rows, columns) in sorted(modules_of(model, targets).items()):
        tensors[f"base_model.model.{name}.lora_A.weight"] = random.normal(0, 0.2, (rank, columns)).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = random.normal(0, 0.2, (rows, rank)).astype(np.float32)
    return save(folder, tensors, {"r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), **config})


def modules_of(model: Path, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the matrices of a model's modules, by name."""
    with safe_open(model / "model.safetensors", "np") as file:
        names = {name.removesuffix(".weight"): tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return {name: shape for name, shape in names.items() if name.rsplit(".", 1)[-1] in targets}


def save(folder: Path, tensors: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    return folder
