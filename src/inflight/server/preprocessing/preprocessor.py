"""The pure part: one body in, what the engine needs of it out, or the sentence that refuses it.

No engine, no clock, no tenant, so that it may run anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import structs

from inflight.counted import counted
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.answer_forms import AnswerForms, form_field
from inflight.server.common.bodies import UnknownFields
from inflight.server.common.conversation import ChatBody
from inflight.server.common.fields import FORM_FIELDS, ChatSettings, GenerationSettings
from inflight.server.common.prepared import (
    EndpointName,
    Limits,
    Prepared,
    PreparedAnswer,
    PreparedChat,
    Prompt,
    check_logprobs,
    check_model,
    check_samples,
    max_tokens_of,
    packed,
)
from inflight.server.common.prompts import Prompts
from inflight.server.errors import ApiError, invalid
from inflight.server.registry import ENDPOINTS
from inflight.text import Tokenizer

Body = bytes | memoryview
S = TypeVar("S", bound=GenerationSettings)


class Preprocessor:
    """Reads bodies of all endpoints, whose `prepare` functions use its parts."""

    def __init__(
        self,
        encoder: PromptEncoder,
        tokenizer: Tokenizer | None,
        limits: Limits,
        parsers: ParserChoice | None = None,
    ):
        """parsers: of the model's answers; None where nothing is known of them."""
        self.limits = limits
        self.prompts = Prompts(encoder, tokenizer, limits)
        self.forms = AnswerForms(self.prompts, limits.keeps_grammars, parsers)

    def prepared(self, endpoint: EndpointName, body: Body, history: Body = b"") -> Prepared | PreparedAnswer:
        """Prepare a body. history: where answers are stored, the items before it, as JSON. Raises ApiError."""
        asked, ignored = self.decoded(endpoint, body)
        return self.of_decoded(endpoint, asked, history, ignored)

    def decoded(self, endpoint: EndpointName, body: Body) -> tuple[Any, tuple[str, ...]]:
        """Return the body's struct, and the paths of ignored fields that are to be named. Raises ApiError."""
        policy = self.limits.unknown_fields
        unknown = UnknownFields(refuses=policy == "refuse")
        asked = ENDPOINTS[endpoint].body.decode(body, unknown)
        return asked, unknown.names if policy == "warn" else ()

    def of_decoded(
        self, endpoint: EndpointName, asked: Any, history: Body = b"", ignored: tuple[str, ...] = ()
    ) -> Prepared | PreparedAnswer:
        """Prepare a body that is decoded. Raises ApiError."""
        entry = ENDPOINTS[endpoint]
        with renamed_fields(entry.field_names):
            prepared = entry.prepare(self, asked, history)
        return structs.replace(prepared, ignored=ignored) if ignored else prepared

    def check_generates(self, model: str | None) -> None:
        """Refuse a name that is none of the model's, and a model that generates no text. Raises ApiError."""
        check_model(model, self.limits.models)
        pooler = self.limits.pooler
        if not self.limits.generates and pooler is not None:
            made = counted(len(pooler.labels), "score") if pooler.labels else "a vector"
            ask = "/classify, /score or /v1/rerank" if pooler.labels else "/v1/embeddings"
            raise invalid(
                f"This model generates no text: it computes {made} of each text; ask {ask}.",
                "model",
                "unsupported_task",
            )

    def settings_of(self, body: GenerationSettings, kind: type[S]) -> S:
        """Return the body without its prompt and the form of its answer. Allowed tokens are named once: a list of a
        million may name a hundred. Raises ApiError."""
        names = [name for name in kind.__struct_fields__ if name not in FORM_FIELDS]
        settings = kind(**{name: getattr(body, name) for name in names})
        if settings.allowed_token_ids:
            allowed, most = sorted(set(settings.allowed_token_ids)), self.limits.vocab_size
            if most is not None and allowed[-1] >= most:
                raise invalid(
                    f"allowed_token_ids names the token id {allowed[-1]}, but the vocabulary has {most} tokens (0 to "
                    f"{most - 1}).",
                    "allowed_token_ids",
                )
            settings.allowed_token_ids = allowed
        return settings

    def chat(
        self, body: ChatBody, kind: EndpointName = "chat", echoed: bytes = b"", stored_items: bytes = b""
    ) -> PreparedChat:
        """Prepare a conversation.

        Args:
            kind: The endpoint.
            echoed: JSON, what its answer repeats of its body.
            stored_items: JSON, the items that the answer is stored with.

        Raises:
            ApiError: 400, 404.
        """
        self.check_generates(body.model)
        check_samples(self.limits, 1, body.n or 1)
        tools = self.forms.tools(body)
        rendered = self.prompts.rendered(body, tools.shown)
        in_reasoning = self.forms.opens_in_reasoning(rendered.text)
        grammar = self.forms.of_chat(body, tools, rendered.text, in_reasoning)
        tokens = self.prompts.of_chat(body, rendered)
        shown = max_tokens_of(body) if body.logprobs else None
        check_logprobs(self.limits, shown, body.n or 1, body.top_logprobs or 0, len(tokens), body.prompt_logprobs)
        return PreparedChat(
            self.settings_of(body, ChatSettings),
            (Prompt(packed(tokens)),),
            kind,
            grammar=grammar,
            form_field=ENDPOINTS[kind].field_names.get(field := form_field(body), field),
            tools=tools.callable,
            old_functions=tools.old,
            parallel_calls=tools.choice.parallel,
            in_reasoning=in_reasoning,
            echoed=echoed,
            stored_items=stored_items,
        )


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Raise errors with the names that the endpoint's own body has.

    Args:
        names: By chat's fields, the longer before those that they begin with; one that begins with a dot is nested.
    """
    try:
        yield
    except ApiError as error:
        param = error.param or ""
        inner = next((one for one in names if one.startswith(".") and one in param), None)
        if inner is not None:
            param = param.replace(inner, names[inner], 1)
            error.message = error.message.replace(inner, names[inner])
        outer = next((one for one in names if re.match(rf"{re.escape(one)}(?![^.\[])", param)), None)
        if outer is not None:
            param = names[outer] + param.removeprefix(outer)
            known = re.escape(outer)
            error.message = re.sub(rf"\b{known}\b", names[outer], error.message, count=1)
            error.message = re.sub(rf"\b{known}(?=[.\[])", names[outer], error.message)
        error.param = param or None
        raise
