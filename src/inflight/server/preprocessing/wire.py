"""What the server and its preprocessing processes say to each other: frames of msgpack, each side checking types.

Knows shapes only. Nothing here can name code: a process that a hostile template has taken over can tell the server
wrong token ids, and no more.
"""

from __future__ import annotations

import threading
from array import array
from typing import NamedTuple

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.text_tasks import Told
from inflight.limited_process import LENGTH_BYTES
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.bodies.as_texts import TextForm, TextSettings
from inflight.server.bodies.chat import ChatSettings
from inflight.server.bodies.completions import CompletionSettings
from inflight.server.bodies.unknown_fields import UnknownFieldPolicy
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.errors import ApiError

Body = bytes | memoryview
NAMES = tuple(ENDPOINTS)
READY = b"ready"  # the first process has loaded what it needs
HELLO = b"h"  # the first byte of a child, by which the server learns its process id
KEEP, RENEW = b"k", b"r"  # before an answer: whether the child that gave it goes on
SHORT, LONG = b"s", b"l"  # with a socket: what the child will read
# That a process may take for a body, beyond what it has: for the longest there may be, more where the context is long.
SHORT_MEMORY_BYTES, LONG_MEMORY_BYTES = 16 << 20, 112 << 20


class Limits(Struct, frozen=True):
    """Limits that a body is checked against before it is cut into tokens.

    models: names by which the model may be called; none: any. most_sequences: what may wait at once. max_model_len:
    tokens of prompt and answer together. vocab_size: tokens that the model has. None: no bound. max_logprobs:
    log-probabilities of one answer.
    parse_control_tokens: what messages spell as a control token is one. parsers: of the model's answers.
    keeps_grammars: whether the engine binds answers to schemas and grammars.
    pooler: how the engine tells something of whole texts; None: it does not. prompts: what may be put before them.
    generates: whether it continues texts.
    memory_bytes: that a process may take for one long body, beyond what it has.
    unknown_fields: what becomes of fields that are unknown here.
    """

    models: tuple[str, ...] = ()
    max_n: int = 128
    max_prompts: int = 256
    most_sequences: int | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    max_logprobs: int = 1 << 19
    parse_control_tokens: bool = False
    parsers: ParserNames = ParserNames()
    keeps_grammars: bool = False
    pooler: Pooler | None = None
    prompts: TextPrompts = NO_PROMPTS
    generates: bool = True
    memory_bytes: int = LONG_MEMORY_BYTES
    unknown_fields: UnknownFieldPolicy = "warn"


def memory_of_body(limits: Limits, is_long: bool) -> int:
    """Return the bytes that a process may take for one body, beyond what it has."""
    return limits.memory_bytes if is_long else min(SHORT_MEMORY_BYTES, limits.memory_bytes)


def out_of_memory(most_bytes: int) -> ApiError:
    return ApiError(
        400,
        f"The body needs more memory to be read than the {most_bytes:,} bytes that one may take; send less in one "
        "body, or a shorter conversation.",
        code="body_too_complex",
    )


class Setup(Struct, frozen=True):
    """The settings of a process: the model's folder, and the seconds that it may compute for one body."""

    model_folder: str
    cpu_seconds: float


class Prompt(Struct, frozen=True, array_like=True):
    """token_ids: 32 bits each, of this machine's byte order. text: where the answer repeats it. second_text_at: of a
    pair, as `Request` has it."""

    token_ids: bytes
    text: str | None = None
    second_text_at: int | None = None

    def ids(self) -> tuple[int, ...]:
        """The same number is the same object in all prompts: a fifth of the memory."""
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


class Job(NamedTuple):
    """A body as it came. history: where answers are stored, the items that come before it, as JSON."""

    endpoint: EndpointName
    body: memoryview
    history: memoryview


def job_frame(endpoint: EndpointName, body: bytes, history: bytes) -> tuple[bytes, bytes, bytes]:
    """A byte that says which endpoint, the length of the history, the history, and the body; in pieces, none of which
    is copied."""
    length = 1 + LENGTH_BYTES + len(history) + len(body)
    head = bytes([NAMES.index(endpoint)]) + len(history).to_bytes(LENGTH_BYTES, "big")
    return length.to_bytes(LENGTH_BYTES, "big") + head, history, body


def job_of(frame: bytearray) -> Job:
    """Without the length that stood before it."""
    begin = 1 + LENGTH_BYTES
    end = begin + int.from_bytes(frame[1:begin], "big")
    view = memoryview(frame)
    return Job(NAMES[frame[0]], view[end:], view[begin:end])


class ReadBody(Struct, frozen=True, kw_only=True):
    """ignored: places of unknown fields that the answer's header and the log name."""

    ignored: tuple[str, ...] = ()


class PreparedCompletion(ReadBody, frozen=True, tag_field="outcome", tag="completion"):
    settings: CompletionSettings
    prompts: tuple[Prompt, ...]
    grammar: Grammar | None = None
    form_field: str | None = None


class PreparedChat(ReadBody, frozen=True, tag_field="outcome", tag="chat"):
    """kind: the endpoint's name, of which the settings are those of chat. form_field: that the grammar is from. tools:
    that may be called; old_functions: they came as `functions`. parallel_calls: an answer may call several.
    in_reasoning: the prompt ends within it. repeated: JSON, what the endpoint's answer repeats of the body.
    kept_items: JSON, the items that it is stored with."""

    settings: ChatSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName = "chat"
    grammar: Grammar | None = None
    form_field: str | None = None
    tools: tuple[Tool, ...] = ()
    old_functions: bool = False
    parallel_calls: bool = True
    in_reasoning: bool = False
    repeated: bytes = b""
    kept_items: bytes = b""


class PreparedTexts(ReadBody, frozen=True, tag_field="outcome", tag="texts"):
    """kind: the endpoint's name. pairs: of prompts, whose vectors are compared; none: each prompt is a text, or a pair
    that the model itself scores."""

    settings: TextSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName
    told: Told
    form: TextForm
    pairs: tuple[tuple[int, int], ...] = ()


class PreparedAnswer(ReadBody, frozen=True, tag_field="outcome", tag="answer"):
    """JSON, as it is sent: the body asked for nothing more than this."""

    json: bytes


class Refused(Struct, frozen=True, tag_field="outcome", tag="refused"):
    """An ApiError on its way between processes."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: ApiError) -> Refused:
        return cls(error.status, error.message, error.type, error.param, error.code)

    def error(self) -> ApiError:
        return ApiError(self.status, self.message, type=self.type, param=self.param, code=self.code)


Prepared = PreparedCompletion | PreparedChat | PreparedTexts
Outcome = PreparedCompletion | PreparedChat | PreparedTexts | PreparedAnswer | Refused

encode = msgspec.msgpack.Encoder().encode
decode_limits = msgspec.msgpack.Decoder(Limits).decode
decode_setup = msgspec.msgpack.Decoder(Setup).decode
decode_outcome = msgspec.msgpack.Decoder(Outcome).decode


def packed(token_ids: list[int] | tuple[int, ...]) -> bytes:
    return array("I", token_ids).tobytes()
