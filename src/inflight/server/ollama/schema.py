"""Bodies of ollama's /api/chat and /api/generate, their options, and the times for which models stay in memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from inflight.core.types.sampling import MAX_TEMPERATURE
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import KeepAlive
from inflight.server.common.fields import (
    MAX_MESSAGES,
    JsonObject,
    Name,
    RepetitionPenalty,
    Seed,
    Stops,
    Text,
    TokenIds,
    TopLogprobs,
)
from inflight.server.common.tools import CalledTool, Tools
from inflight.server.errors import ApiError, invalid

# Clients in JavaScript and Go write whole numbers as 8192.0, too.
Whole = Annotated[float, Meta(ge=-(2**31), lt=2**31)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Duration = Annotated[float, Meta(ge=-1e15, le=1e15)] | Annotated[str, Meta(max_length=64)]
_UNIT_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"[+-]?(0|((\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h))+)")
_PARTS = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


class OllamaOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """num_ctx: tokens to which a conversation is cut, below the server's own context. num_predict: -1, -2: what there
    is room for. seed: -1: another one each time. repeat_last_n: 0 switches the penalties off; else they count all
    tokens. Options that say how a model is loaded (num_gpu, num_thread, …) are the server's, and are ignored here."""

    num_ctx: Whole | None = None
    num_predict: Whole | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_k: Whole | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Seed | Whole | None = None
    stop: Stops | None = None
    repeat_penalty: RepetitionPenalty | None = None
    repeat_last_n: Whole | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class OllamaMessage(Struct, kw_only=True):
    """thinking: the reasoning of an earlier answer. images: refused. tool_name: of the tool whose result it is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: Annotated[list[Text], Meta(max_length=MAX_MESSAGES)] | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=1024)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None


class OllamaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """stream: true, where it is left out. format: "json", or a JSON schema. keep_alive: for how long the model stays in
    memory (seconds, or "5m"; below zero: until others need its room). truncate: a conversation that is too long loses
    its oldest messages, which is so where it is left out."""

    model: Name
    stream: bool | None = None
    format: Literal["", "json"] | JsonObject | None = None
    options: OllamaOptions | None = None
    keep_alive: Duration | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class OllamaChatBody(OllamaBody, kw_only=True, forbid_unknown_fields=True):
    """Without messages the model is loaded alone, or unloaded (keep_alive 0)."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Tools | None = None


class OllamaGenerateBody(OllamaBody, kw_only=True, forbid_unknown_fields=True):
    """Without a prompt the model is loaded alone, or unloaded (keep_alive 0). raw: the prompt is continued as it is.
    suffix: text behind the gap that the answer fills, of which the prompt is before it. context: of an earlier answer,
    which the prompt goes on from."""

    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    context: TokenIds | None = None


ONLY_TEXT = "this server reads text alone."
_NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "template": (("",), "the model's own template is used."),
    "_debug_render_only": ((False,), "/v1/chat/completions/render shows a prompt."),
}
_HINTS = frozenset({"shift"})  # an answer ends where the context does
CHAT = BodyDecoder(OllamaChatBody, neutral=_NEUTRAL, hints=_HINTS)
GENERATE = BodyDecoder(
    OllamaGenerateBody,
    neutral={
        **_NEUTRAL,
        "images": (([],), ONLY_TEXT),
        **dict.fromkeys(("width", "height", "steps"), ((0,), "no images are made.")),
    },
    hints=_HINTS,
)


class OllamaModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """name: an older name of model. options, system, template, verbose: of clients that show a model, and change
    nothing. insecure, username, password: nothing is done with them."""

    model: Name | None = None
    name: Name | None = None
    stream: bool | None = None
    verbose: bool | None = None
    insecure: bool | None = None
    system: Text | None = None
    template: Text | None = None
    options: JsonObject | None = None

    @property
    def asked(self) -> str:
        """Return the name. Raises ApiError where there is none, or one that no program can be given."""
        if found := self.model or self.name:
            if "\0" in found:
                raise invalid("The model's name has a NUL character; leave it out.", "model")
            return found
        raise invalid("The field 'model' is missing.", "model", "missing_field")


MODEL = BodyDecoder(OllamaModelBody, hints=frozenset({"username", "password"}))


# -- how long a model stays in memory ----------------------------------------------------------------------------------


def seconds_of(duration: float | str) -> float:
    """Return the seconds of a duration; infinity for one below zero. Raises ApiError."""
    if isinstance(duration, str):
        if not _DURATION.fullmatch(duration):
            raise invalid(
                f"keep_alive is {duration!r}, which is no duration; give seconds, or a number with a unit, such as "
                '"5m" or "1h30m".',
                "keep_alive",
            )
        total = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PARTS.findall(duration))
        duration = -total if duration.startswith("-") else total
    return math.inf if duration < 0 else duration


class _Kept(Struct):
    model: str
    keep_alive: float | str
    prompt: Raw = Raw()
    messages: Raw = Raw()

    @property
    def is_all(self) -> bool:
        """Return whether the body asks for nothing else."""
        return all(bytes(memoryview(one)[:5]) in (b"", b"null", b'""', b"[]") for one in (self.prompt, self.messages))


_KEPT = msgspec.json.Decoder(_Kept)


def keep_alive_of(body: bytes, unloaded: Callable[[str], bytes] | None = None) -> KeepAlive | None:
    """Return what a body says of its model's stay in memory; None where it says nothing, or nothing valid, which
    reading the body reports.

    Args:
        unloaded: Returns the answer to a body that asks for nothing else, for the name of its model.
    """
    if b'"keep_alive"' not in body:
        return None
    try:
        asked = _KEPT.decode(body)
        seconds = seconds_of(asked.keep_alive)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ApiError):
        return None
    is_over = seconds == 0 and asked.is_all and unloaded is not None
    return KeepAlive(asked.model, seconds, unloaded(asked.model) if unloaded is not None and is_over else b"")
