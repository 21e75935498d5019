"""Read sentence-transformers folders: how a text becomes a vector, its prompts, and the longest text.

`modules.json` lists modules with a file each. A module that computes something else is refused, since a vector without
it would be of another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from inflight.json_file import JsonFileError, read_json_list, read_json_object, shown
from inflight.models.errors import ModelError
from inflight.models.spec import ModelSpec, Pooler, PoolerActivation, PoolerLayer, Pooling

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
_LENGTHS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
_NAMED: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
_ACTIVATIONS: dict[str, PoolerActivation] = {"Identity": "none", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
_MAX_MODULES = 16
_LONGEST_PROMPT = 100_000


class TextPrompts(Struct, frozen=True):
    """Texts to put before inputs by their purpose ("query" and the like), and the name of the default one.
    of_pairs: the source of a template that writes a pair that is read together; empty: as the tokenizer puts them."""

    prompts: Mapping[str, str] = {}
    default: str | None = None
    of_pairs: str = ""


NO_PROMPTS = TextPrompts()


def is_embedder(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def with_modules(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return the model with the pooler and length of its folder's modules; unchanged without modules, and for a
    classifier. Raises ModelError."""
    if not is_embedder(folder) or (spec.pooler is not None and spec.pooler.labels):
        return spec
    return replace(spec, head=None, pooler=_pooler(folder, spec.hidden_size), length=_length(folder, spec))


def read_prompts(folder: Path) -> TextPrompts:
    """Read the prompts of a folder's settings. Raises ModelError."""
    data = _object(folder / SETTINGS)
    prompts, default = data.get("prompts") or {}, data.get("default_prompt_name")
    are_texts = isinstance(prompts, dict) and all(
        isinstance(one, str) and len(one) <= _LONGEST_PROMPT for one in prompts.values()
    )
    if not are_texts or not (default is None or default in prompts):
        raise ModelError(f"{folder / SETTINGS} must name prompts by what they are for, not {shown(prompts)}.")
    return TextPrompts(prompts, default)


def _pooler(folder: Path, hidden_size: int) -> Pooler:
    pooler = Pooler(pooling="mean", normalize=False)
    for place, kind in _modules(folder):
        if kind == "Transformer":
            if place != folder:
                raise ModelError(f"{folder / MODULES} keeps the model in {place}; give that folder.")
        elif kind == "Pooling":
            pooler = replace(pooler, pooling=_pooling(place / "config.json"))
        elif kind == "Dense":
            inputs = pooler.outputs(hidden_size)
            pooler = replace(pooler, layers=(*pooler.layers, _dense(place, folder, inputs)))
        elif kind == "Normalize":
            pooler = replace(pooler, normalize=True)
        else:
            raise ModelError(
                f"{folder / MODULES} lists the module {shown(kind)}, which is not computed here; known are "
                "Transformer, Pooling, Dense and Normalize."
            )
    return pooler


def _modules(folder: Path) -> list[tuple[Path, str]]:
    """Folder and kind of each."""
    try:
        listed = read_json_list(folder / MODULES)
    except JsonFileError as error:
        raise ModelError(str(error)) from None
    found = []
    for one in listed[:_MAX_MODULES]:
        kind, path = (one.get("type"), one.get("path", "")) if isinstance(one, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(path, str) or ".." in path or path.startswith("/"):
            raise ModelError(f"{folder / MODULES} must list modules with a type and a path, not {shown(one)}.")
        found.append((folder / path if path else folder, kind.rpartition(".")[2]))
    return found


def _pooling(path: Path) -> Pooling:
    data = _object(path)
    named = data.get("pooling_mode")
    modes = [named] if isinstance(named, str) else [name for name, on in data.items() if on is True and "mode" in name]
    known = [_MODES.get(mode) or _NAMED.get(mode) for mode in modes]
    if len(known) != 1 or known[0] is None:
        raise ModelError(
            f"{path} pools by {', '.join(modes) or 'nothing'}; computed are the first token, the last, and the mean of "
            "all, one of them alone."
        )
    return known[0]


def _dense(place: Path, folder: Path, inputs: int) -> PoolerLayer:
    data = _object(place / "config.json")
    named = data.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(str(named).rpartition(".")[2])
    outputs = data.get("out_features")
    if (
        activation is None
        or not isinstance(outputs, int)
        or not 0 < outputs <= 2**20
        or data.get("in_features") != inputs
    ):
        raise ModelError(
            f"{place / 'config.json'} must be of a product from {inputs} numbers on, with Tanh, GELU, ReLU or "
            f"Identity, not {shown(data)}."
        )
    return PoolerLayer(
        name=f"{place.relative_to(folder)}/linear",
        inputs=inputs,
        outputs=outputs,
        activation=activation,
        bias=data.get("bias", True) is not False,
    )


def _length(folder: Path, spec: ModelSpec) -> int:
    """Most tokens of a text that its authors use it for."""
    for name in _LENGTHS:
        longest = _object(folder / name).get("max_seq_length")
        if isinstance(longest, int) and not isinstance(longest, bool) and longest > 0:
            return min(longest, spec.longest_model_len)
    return spec.default_model_len


def _object(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return read_json_object(path)
    except JsonFileError as error:
        raise ModelError(str(error)) from None
