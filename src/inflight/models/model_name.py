"""Names of models as people write them: hub ids and tags of ollama, of which a format of weights is a part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

# What publishers add to a name without another shape; `latest` of ollama, the rest of hubs.
_ADDED = re.compile(
    r"(-(instruct|chat|hf|it|base|think|thinking|reasoning|preview|pt|qat|text|latest|en|zh|unsloth|gguf|b?f16|fp16|f32"
    r"|v\d(\.\d)?|\d{4}))$"
)
_GGUF = re.compile(r"(?P<plain>.+?)(-gguf)?([-.](ud-)?(?P<type>i?q(?P<bits>[1-8])(_\w+|$)))?(?P<end>-gguf)?")
_USUAL = ("q4_k_m", 4)  # of a GGUF repository or a tag of ollama that names no type: llama.cpp and ollama take this one
_PLAIN = re.compile(r"-(b?f16|fp16|f32)$")  # ends of tags whose files are not quantized


class ModelName(Struct, frozen=True):
    """plain: without its format of weights. weights: that format, "" where the name has none. quantization: its
    `quantization_config`. is_usual: whether the name is a tag of ollama that names no format: models that generate text
    usually have this one there."""

    plain: str
    weights: str = ""
    quantization: Mapping[str, Any] | None = None
    is_usual: bool = False

    @property
    def spellings(self) -> Iterable[str]:
        """Return the names to look for, the nearest to the given one first."""
        _, _, behind_owner = self.plain.partition("_")  # owner_model, as repositories of GGUF files have it
        for whole in filter(None, (self.plain, behind_owner)):
            dated = re.sub(r"-(instruct|thinking)(?=-\d{4}$)", "", whole)  # a release of its own, of another context
            yield from (whole, dated)
            while whole != (whole := _ADDED.sub("", whole)):
                yield whole


def compact(name: str) -> str:
    """Return a name without hyphens, which some leave out: llama3.1-8b."""
    return re.sub(r"[-_]", "", name)


def model_name(given: str, formats: Mapping[str, Mapping[str, Any]]) -> ModelName:
    """Divide a name into a model's and a format's. formats: of `names.toml`."""
    name = re.sub(r"\s+", "-", given.strip().lower()).rpartition("/")[2].removeprefix("meta-").replace(":", "-")
    name = re.sub("-(latest|preview)$", "", name)
    ends = {end: one for one, config in formats.items() for end in (one, *config.get("spelled", ()))}
    end = max((end for end in ends if name.endswith(f"-{end}")), key=len, default="")
    if end:
        config = {key: value for key, value in formats[ends[end]].items() if key != "spelled"}
        return ModelName(name.removesuffix(f"-{end}"), ends[end], config)
    found = _GGUF.fullmatch(name)
    if found is not None and (found["type"] or name.endswith("-gguf")):
        kind, bits = (found["type"], int(found["bits"])) if found["type"] else _USUAL
        return ModelName(found["plain"], kind, _gguf(bits))
    is_tag = ":" in given and "/" not in given and _PLAIN.search(name) is None
    return ModelName(name, _USUAL[0], _gguf(_USUAL[1]), is_usual=True) if is_tag else ModelName(name)


def _gguf(bits: int) -> Mapping[str, Any]:
    """Describe weights of this many bits, each with its share of its block's scale."""
    return {"quant_method": "gguf", "bits": bits, "element_bytes": (bits + 0.5) / 8}
