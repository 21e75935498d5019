"""Names that others have for fields of ours: llama.cpp, Ollama, TGI, SGLang, Mistral, OpenRouter, vLLM, Dynamo."""

from __future__ import annotations

from collections.abc import Container, Set
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from inflight.server.common.fields import Count, Name, ReasoningEffort

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
_FORMS = ("grammar", "ebnf", "regex", "json_schema")  # empty: none
_SAME_IN_OPTIONS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty"),
    *("repeat_penalty", "num_predict"),
)
_TAG = ":latest"  # that ollama's clients add to names
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


class _AgentContext(Struct, frozen=True):
    """The caller. A session with a parent is one of several of its parent's program; hints beside it are not read."""

    session_id: Name | None = None
    parent_session_id: Name | None = None
    program_id: Name | None = None


_OtherHint = str | bool | float | int | list[Raw] | None  # in another form, which changes no token
_Hint = _AgentContext | _OtherHint


class _Extension(Struct, frozen=True):
    """Dynamo's `nvext`, and vLLM's `vllm_xargs`, of which its router reads one object. The values of vLLM's are numbers
    or texts, so that the object may come as a text."""

    agent_context: _Hint = None
    agentic_context: _Hint = None


AGENT_CONTEXTS = {"agent_hint", "nvext", "vllm_xargs"}
_SWITCHES = {"think", "thinking", "reasoning"}
ALIAS_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {  # of those that are more than another name
    "options": msgspec.json.Decoder(dict[str, Raw]),
    "think": msgspec.json.Decoder(bool | ReasoningEffort),
    "thinking": msgspec.json.Decoder(bool | ReasoningEffort | _Thinking),
    "reasoning": msgspec.json.Decoder(bool | ReasoningEffort | _Reasoning),
    "agent_hint": msgspec.json.Decoder(_Hint),
    **dict.fromkeys(("nvext", "vllm_xargs"), msgspec.json.Decoder(_Extension | _OtherHint)),
}
_CONTEXT = msgspec.json.Decoder(_AgentContext)


def served_name(name: str, known: Container[str]) -> str | None:
    """Return the known name that a name stands for: itself, or the same without or with the tag that ollama's clients
    add."""
    return next((one for one in (name, name.removesuffix(_TAG), name + _TAG) if one in known), None)


Fields = dict[str, tuple[str, Raw]]  # each with the path that its value comes from


def aliases_for(known: Set[str]) -> frozenset[str]:
    """Return the names that stand for fields of a body. known: the fields that it has."""
    renamed = {name for name in _RENAMED if _target(name, known) != name}
    switches = _SWITCHES if "enable_thinking" in known else set()
    contexts = AGENT_CONTEXTS if "program_id" in known else set()
    return frozenset(renamed | switches | contexts | ({"options"} if "temperature" in known else set()))


def translated(name: str, value: Any, known: Set[str]) -> tuple[Fields, list[str]]:
    """Return the fields that an alias stands for, and the paths of what has no field here.

    Args:
        name: One of `aliases_for` these fields.
        value: By its decoder; without one as it lies in the body.
    """
    if name in _RENAMED:
        return {_target(name, known): (name, _adapted(name, value))}, []
    if name == "options":
        return _of_options(value, known)
    if name in AGENT_CONTEXTS:
        return _of_agent(name, value), []
    given = {field: one for field, one in _settings_of(value).items() if one is not None}
    fields = {field: (name, Raw(_encode(one))) for field, one in given.items() if field in known}
    return fields, [] if known >= given.keys() else [name]


def _of_agent(name: str, value: _Extension | _Hint) -> Fields:
    if isinstance(value, _Extension):
        inside = "agent_context" if name == "nvext" else "agentic_context"
        name, context = f"{name}.{inside}", _context_of(getattr(value, inside))
    else:
        context = _context_of(value)
    given = {"session_id": context.session_id, "program_id": context.program_id or context.parent_session_id}
    return {field: (name, Raw(_encode(one))) for field, one in given.items() if one is not None}


def _context_of(hint: _Hint) -> _AgentContext:
    """Return what a hint says of the caller: nothing, where it has no form that is known here."""
    try:
        return hint if isinstance(hint, _AgentContext) else _CONTEXT.decode(hint if isinstance(hint, str) else b"{}")
    except (msgspec.MsgspecError, RecursionError):
        return _AgentContext()


def _of_options(options: dict[str, Raw], known: Set[str]) -> tuple[Fields, list[str]]:
    fields: Fields = {}
    ignored: list[str] = []
    for name, value in options.items():
        path, target = f"options.{name}", _target(name, known)
        if bytes(value) == b"null":
            continue
        if name in _SAME_IN_OPTIONS and target in known:
            fields[target] = (path, _adapted("random_seed" if name == "seed" else name, value))
        else:
            ignored.append(path)
    return fields, ignored


def _settings_of(asked: bool | str | _Thinking | _Reasoning) -> dict[str, Any]:
    """Return what a switch of reasoning says, by the names that chat has for it."""
    match asked:
        case str():
            return {"reasoning_effort": asked}
        case _Thinking():
            thinks = None if asked.type == "auto" else asked.type != "disabled"
            return {"enable_thinking": thinks, "thinking_token_budget": asked.budget_tokens}
        case _Reasoning():
            return {
                "enable_thinking": asked.enabled,
                "reasoning_effort": asked.effort,
                "thinking_token_budget": asked.max_tokens,
                "include_reasoning": None if asked.exclude is None else not asked.exclude,
            }
        case _:
            return {"enable_thinking": asked}


def _target(name: str, known: Set[str]) -> str:
    """Return the field that a name stands for; the name itself, if it stands for none of these."""
    return next((one for one in _RENAMED.get(name, ()) if one in known), name)


def _adapted(name: str, raw: Raw) -> Raw:
    """Return null for what stands for "not set" under this name."""
    value = bytes(memoryview(raw)[:2])
    unused = name in _UNBOUNDED_BELOW_ZERO and value[:1] == b"-"
    return _NULL if unused or (name in _FORMS and value in (b'""', b"{}")) else raw
