"""Prepared bodies: token ids and settings, from which requests to the engine are made, and the limits of a body.

Both pass between processes.
"""

from __future__ import annotations

import threading
from array import array

from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.counted import shortened
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.text_tasks import TextTask
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.call import EndpointName
from inflight.server.common.bodies import UnknownFieldPolicy
from inflight.server.common.fields import ChatSettings, CompletionSettings, TextForm, TextSettings
from inflight.server.errors import ApiError


class Prompt(Struct, frozen=True, array_like=True):
    """token_ids: 32 bits each, of this machine's byte order. text: where the answer repeats it. second_text_at: of a
    pair, as `Request` has it."""

    token_ids: bytes
    text: str | None = None
    second_text_at: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4

    def ids(self) -> tuple[int, ...]:
        """Return the token ids. The same number is the same object in all prompts: a fifth of the memory."""
        ids = array("I", self.token_ids)
        most = max(ids, default=0)
        if most >= _MOST_SHARED:
            return tuple(ids)
        if most >= len(_SHARED):
            with _GROWING:  # long prompts are translated in threads
                _SHARED.extend(range(len(_SHARED), most + 1))
        return tuple(map(_SHARED.__getitem__, ids))


_MOST_SHARED = 1 << 18  # vocabularies are smaller
_SHARED: list[int] = []
_GROWING = threading.Lock()


class ReadBody(Struct, frozen=True, kw_only=True):
    """ignored: paths of unknown fields that the answer's header and the log name."""

    ignored: tuple[str, ...] = ()


class PreparedCompletion(ReadBody, frozen=True, tag_field="outcome", tag="completion"):
    settings: CompletionSettings
    prompts: tuple[Prompt, ...]
    grammar: Grammar | None = None
    form_field: str | None = None


class PreparedChat(ReadBody, frozen=True, tag_field="outcome", tag="chat"):
    """kind: the endpoint's name, of which the settings are those of chat. form_field: that the grammar is from. tools:
    that may be called; old_functions: they came as `functions`. parallel_calls: an answer may call several.
    in_reasoning: the prompt ends within it. echoed: JSON, what the endpoint's answer repeats of the body.
    stored_items: JSON, the items that it is stored with."""

    settings: ChatSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName = "chat"
    grammar: Grammar | None = None
    form_field: str | None = None
    tools: tuple[Tool, ...] = ()
    old_functions: bool = False
    parallel_calls: bool = True
    in_reasoning: bool = False
    echoed: bytes = b""
    stored_items: bytes = b""


class PreparedTexts(ReadBody, frozen=True, tag_field="outcome", tag="texts"):
    """kind: the endpoint's name. pairs: of prompts, whose vectors are compared; none: each prompt is a text, or a pair
    that the model itself scores."""

    settings: TextSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName
    task: TextTask
    form: TextForm
    pairs: tuple[tuple[int, int], ...] = ()


class PreparedAnswer(ReadBody, frozen=True, tag_field="outcome", tag="answer"):
    """JSON, as it is sent: the body asked for nothing more than this."""

    json: bytes


Prepared = PreparedCompletion | PreparedChat | PreparedTexts


def packed(token_ids: list[int] | tuple[int, ...]) -> bytes:
    return array("I", token_ids).tobytes()


MAX_BODY_MEMORY_BYTES = 112 << 20  # that a process may take for a body, beyond what it has


class Limits(Struct, frozen=True):
    """Limits that a body is checked against before it is cut into tokens.

    models: names by which the model may be called; none: any. max_sequences: what may wait at once. max_model_len:
    tokens of prompt and answer together. vocab_size: tokens that the model has. None: no bound. max_logprobs:
    log-probabilities of one answer.
    parse_control_tokens: what messages spell as a control token is one. parsers: of the model's answers.
    keeps_grammars: whether the engine applies schemas and grammars.
    pooler: how the engine makes vectors or scores; None: it does not. prompts: that may be put before such texts.
    generates: whether it continues texts.
    memory_bytes: that a process may take for one long body, beyond what it has.
    unknown_fields: what becomes of fields that are unknown here.
    """

    models: tuple[str, ...] = ()
    max_n: int = 128
    max_prompts: int = 256
    max_sequences: int | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    max_logprobs: int = 1 << 19
    parse_control_tokens: bool = False
    parsers: ParserNames = ParserNames()
    keeps_grammars: bool = False
    pooler: Pooler | None = None
    prompts: TextPrompts = NO_PROMPTS
    generates: bool = True
    memory_bytes: int = MAX_BODY_MEMORY_BYTES
    unknown_fields: UnknownFieldPolicy = "warn"


def check_model(name: str | None, models: tuple[str, ...]) -> str:
    """Return the name as the client wrote it; ours, if it wrote none. Raises ApiError 404."""
    if name is None:
        return models[0] if models else ""
    if models and name not in models:
        raise ApiError(
            404,
            f"The model {shortened(name)!r} does not exist; this server has {', '.join(models)}.",
            param="model",
            code="model_not_found",
        )
    return name
