"""Read `adapter_config.json` of a low-rank adapter, as PEFT writes it: which modules it changes, and by what factor.

A field that would compute something else than W · x + factor · B · A · x is refused by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.registry import read_json

CONFIG = "adapter_config.json"
# Fields that change what is computed, if they are set, and what to do.
_OTHERS: Mapping[str, str] = {
    "use_dora": "its matrices have magnitudes of their own (DoRA); merge it into the model with merge_and_unload()",
    "modules_to_save": "it replaces whole modules; merge it into the model with merge_and_unload()",
    "lora_bias": "its matrices have biases; train it with lora_bias=False",
    "fan_in_fan_out": "its matrices are stored turned, as GPT-2's are; no family here has such",
    "layer_replication": "it repeats layers; merge it into the model with merge_and_unload()",
    "trainable_token_indices": "it replaces vectors of tokens; merge it into the model with merge_and_unload()",
    "target_parameters": "it changes parameters that are no linear modules; merge it with merge_and_unload()",
    "alora_invocation_tokens": "it begins at some tokens of a text (aLoRA), which is not computed here",
    "use_qalora": "it reads means of groups of inputs (QALoRA), which is not computed here",
    "use_bdlora": "its matrices are of blocks (BD-LoRA), which is not computed here",
    "arrow_config": "it is chosen token by token (Arrow), which is not computed here",
}
# Ways to begin training that change the model's own weights, so that the adapter belongs to those.
_CHANGES_WEIGHTS = ("pissa", "olora", "corda", "loftq", "lora_ga")
_HARMLESS = frozenset(
    (
        *("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping"),
        *("peft_version", "r", "lora_alpha", "lora_dropout", "bias", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights"),
        *("megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
        *("runtime_config", "qalora_group_size", "ensure_weight_tying", "parent_library"),
    )
)


class LoraConfig(Struct, frozen=True):
    """alpha: counts over rank, or with rank-stabilized scaling (https://arxiv.org/abs/2312.03732) over its root.
    alpha_of: by pattern of module names, of those with one of their own. base: the model that it says it is for."""

    alpha: float
    stabilized: bool
    alpha_of: Mapping[str, float]
    base: str | None

    def factor(self, module: str, rank: int) -> float:
        """Return the factor of a module's B · A."""
        alpha = next((one for pattern, one in self.alpha_of.items() if _matches(pattern, module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.stabilized else rank)


def read_lora_config(folder: Path) -> LoraConfig:
    """Read the configuration in a folder of PEFT. Raises ModelError where it is missing, broken or unsupported."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise ModelError(f"{folder} is no folder of an adapter; give the one that holds {CONFIG}.")
    if not path.is_file():
        raise ModelError(f"{folder} holds no {CONFIG}; give a folder that PEFT's save_pretrained has written.")
    data = read_json(path)
    _refuse_others(path, data)
    base = data.get("base_model_name_or_path")
    return LoraConfig(
        alpha=_number(path, "lora_alpha", data.get("lora_alpha", 8)),
        stabilized=bool(data.get("use_rslora", False)),
        alpha_of=_patterns(path, data.get("alpha_pattern") or {}),
        base=base if isinstance(base, str) else None,
    )


def _refuse_others(path: Path, data: Mapping[str, Any]) -> None:
    kind = data.get("peft_type", "LORA")
    if kind != "LORA":
        raise ModelError(f"{path}: peft_type is {shown(kind)}, but adapters here are LORA; merge it into the model.")
    for field, why in _OTHERS.items():
        if data.get(field):
            raise ModelError(f"{path}: {field} is {shown(data[field])}: {why}.")
    if data.get("bias", "none") != "none":
        raise ModelError(f"{path}: bias is {shown(data['bias'])}: it changes biases; train it with bias='none'.")
    begun = data.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_WEIGHTS):
        raise ModelError(
            f"{path}: init_lora_weights is {shown(begun)}, which has changed the model's own weights; save the adapter "
            "with path_initial_model_for_weight_conversion, as PEFT describes."
        )
    unknown = [name for name, value in data.items() if name not in _HARMLESS and name not in _OTHERS and value]
    if unknown:
        raise ModelError(
            f"{path}: {unknown[0]} is {shown(data[unknown[0]])}, and what it means is not known here; merge the "
            "adapter into the model with merge_and_unload()."
        )


def _patterns(path: Path, given: object) -> dict[str, float]:
    if not isinstance(given, dict):
        raise ModelError(f"{path}: alpha_pattern is {shown(given)}; it must be an object of patterns and numbers.")
    for pattern in given:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ModelError(f"{path}: alpha_pattern has {shown(pattern)}, which is no pattern ({error}).") from None
    return {pattern: _number(path, "alpha_pattern", value) for pattern, value in given.items()}


def _number(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{path}: {name} is {shown(value)}; it must be a number.")
    return float(value)


def _matches(pattern: str, module: str) -> bool:
    """Return whether a module is meant, as PEFT has it: at the end of the name, behind a dot or from its beginning."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
