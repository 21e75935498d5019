"""An endpoint, as its API's file declares it for HTTP, batch lines, the command line and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from inflight.server.common.answers import AnswerSerializer
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.fields import StreamOptions
from inflight.server.common.prepared import EndpointName, Prepared, PreparedAnswer

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

Prepare = Callable[["Preprocessor", Any, bytes | memoryview], Prepared | PreparedAnswer]


class KeepAlive(Struct, frozen=True):
    """How long a model is to stay in memory after a call.

    Attributes:
        model: As the body names it. seconds: Without calls; infinity: until others need its room.
        unloaded: The answer to a body that asks for nothing but that the model is unloaded; empty: it asks for more.
    """

    model: str
    seconds: float
    unloaded: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """A path that takes a body about prompts or tokens.

    Attributes:
        name: In the registry and in calls. path: Of HTTP and of batch lines.
        body: Decodes bodies.
        prepare: Makes of a decoded body what the engine is asked, or the whole answer where no engine is asked. Runs in
            a tokenizer worker. The third argument holds the items before the body, as JSON, where responses are stored.
        result: Type of the answer.
        serializer: Writes answers from the engine's events; None where no engine is asked.
        prompt_field: The body's name for the prompt. call_prefix: Begins the ids of calls.
        field_names: The body's names for fields of /v1/chat/completions, for messages about mistakes in them.
        stream_type: Media type of its streams.
        is_for_lines: Lines of batch jobs and of the command line may name it.
        is_stored: Its answers may be stored, and bodies may continue a stored one.
        keep_alive: Reads what a body says of its model's stay in memory; None where bodies say nothing of it.
        renders: The endpoint whose bodies it takes, to answer with the engine requests that these would become.
        operation, about: Name and description in the OpenAPI document.
    """

    name: EndpointName
    path: str
    body: BodyDecoder[Any]
    prepare: Prepare
    result: Any
    serializer: type[AnswerSerializer] | None = None
    prompt_field: str = ""
    call_prefix: str = ""
    field_names: Mapping[str, str] = field(default_factory=dict)
    stream_type: str = "text/event-stream"
    is_for_lines: bool = True
    is_stored: bool = False
    keep_alive: Callable[[bytes], KeepAlive | None] | None = None
    renders: EndpointName | None = None
    operation: str
    about: str = ""

    @property
    def generates(self) -> bool:
        """Whether the engine is asked."""
        return self.serializer is not None


class RenderedRequest(Struct, kw_only=True):
    """sampling_params: by vLLM's names; max_tokens: what the context leaves of those asked for."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int
