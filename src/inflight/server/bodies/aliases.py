"""Names that other servers have for fields of ours: llama.cpp, Ollama, TGI, SGLang, Mistral, OpenRouter.

Knows which field a name stands for, and in which form its value comes; what a field may be, its own type says.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from inflight.server.bodies.types import Count, ReasoningEffort
from inflight.server.bodies.unknown_fields import UnknownFields
from inflight.server.bodies.values import read_value

_RENAMED: dict[str, tuple[str, ...]] = {  # to the first of these that the body has
    "repeat_penalty": ("repetition_penalty",),
    "random_seed": ("seed",),
    "n_cmpl": ("n",),
    "min_new_tokens": ("min_tokens",),
    "stop_sequences": ("stop",),
    "grammar": ("guided_grammar",),
    "ebnf": ("guided_grammar",),
    "regex": ("guided_regex",),
    "json_schema": ("guided_json",),
    **dict.fromkeys(
        ("max_completion_tokens", "max_new_tokens", "n_predict", "num_predict"), ("max_tokens", "max_output_tokens")
    ),
    **dict.fromkeys(
        ("thinking_budget", "max_reasoning_tokens", "max_thinking_tokens", "reasoning_budget"),
        ("thinking_token_budget",),
    ),
}
# A number below zero means "without a bound" there, which is null here.
_UNBOUNDED_BELOW_ZERO = ("n_predict", "num_predict", "thinking_budget", "reasoning_budget", "random_seed")
_SAME_IN_OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty"),
    *("repeat_penalty", "num_predict"),
)
_STRUCTURED = {"options": "temperature", "think": "enable_thinking"}  # with a field that shows that the body has more
_STRUCTURED |= {"thinking": "enable_thinking", "reasoning": "enable_thinking"}
_NULL = Raw(b"null")
_encode = msgspec.json.Encoder().encode


class _Thinking(Struct, forbid_unknown_fields=True):
    """Anthropic's and DeepSeek's form."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = None


class _Reasoning(Struct, forbid_unknown_fields=True):
    """OpenRouter's form. exclude: the answer does not show the reasoning."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    max_tokens: Count | None = None
    exclude: bool | None = None


_OPTIONS = msgspec.json.Decoder(dict[str, Raw])
_THINK = msgspec.json.Decoder(bool | ReasoningEffort | None)
_THINKING = msgspec.json.Decoder(bool | _Thinking | None)
_REASONING = msgspec.json.Decoder(bool | _Reasoning | None)


def aliases_for(known: Collection[str]) -> frozenset[str]:
    """Return the names that stand for fields of a body. known: the fields that it has."""
    renamed = {name for name in _RENAMED if _target(name, known) != name}
    return frozenset(renamed | {name for name, target in _STRUCTURED.items() if target in known})


def translated(name: str, raw: Raw, known: Collection[str], unknown: UnknownFields) -> dict[str, tuple[str, Raw]]:
    """Return the fields that an alias stands for, each with the place that its value comes from.

    Args:
        name: one of `aliases_for` these fields.
        unknown: takes the places of what has no field here.

    Raises:
        ApiError: 400, where the value has not the form that the name is used with.
    """
    if name in _RENAMED:
        return {_target(name, known): (name, _bounded(name, raw))}
    if name == "options":
        return _of_options(raw, known, unknown)
    if name == "think":
        asked = read_value(name, _THINK, raw, unknown)
        given: dict[str, Any] = {"reasoning_effort" if isinstance(asked, str) else "enable_thinking": asked}
    elif name == "thinking":
        given = _of_thinking(read_value(name, _THINKING, raw, unknown))
    else:
        given = _of_reasoning(read_value(name, _REASONING, raw, unknown))
    return {field: (name, Raw(_encode(value))) for field, value in given.items() if field in known}


def _of_options(raw: Raw, known: Collection[str], unknown: UnknownFields) -> dict[str, tuple[str, Raw]]:
    fields: dict[str, tuple[str, Raw]] = {}
    for name, value in read_value("options", _OPTIONS, raw).items():
        place, target = f"options.{name}", _target(name, known)
        if name in _SAME_IN_OPTIONS and target in known:
            fields[target] = (place, _bounded("random_seed" if name == "seed" else name, value))
        elif bytes(value) != b"null":
            unknown.add(place)
    return fields


def _of_thinking(asked: bool | _Thinking | None) -> dict[str, Any]:
    if not isinstance(asked, _Thinking):
        return {"enable_thinking": asked}
    thinks = None if asked.type == "auto" else asked.type != "disabled"
    return {"enable_thinking": thinks, "thinking_token_budget": asked.budget_tokens}


def _of_reasoning(asked: bool | _Reasoning | None) -> dict[str, Any]:
    if not isinstance(asked, _Reasoning):
        return {"enable_thinking": asked}
    return {
        "enable_thinking": asked.enabled,
        "reasoning_effort": asked.effort,
        "thinking_token_budget": asked.max_tokens,
        "include_reasoning": None if asked.exclude is None else not asked.exclude,
    }


def _target(name: str, known: Collection[str]) -> str:
    """Return the field that a name stands for; the name itself, if it stands for none of these."""
    return next((one for one in _RENAMED.get(name, ()) if one in known), name)


def _bounded(name: str, raw: Raw) -> Raw:
    return _NULL if name in _UNBOUNDED_BELOW_ZERO and bytes(memoryview(raw)[:1]) == b"-" else raw
