"""The pure part: one body in, what the engine needs of it out, or the sentence that refuses it.

Knows the endpoints; what the model reads, `prompts` makes of a body, what its answer must be like, `answer_forms`.
No engine, no clock, no tenant, so that it may run anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from inflight.counted import counted
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder
from inflight.server.bodies.as_chat import AsChat
from inflight.server.bodies.as_texts import AsTexts
from inflight.server.bodies.chat import ChatBody, ChatSettings
from inflight.server.bodies.common import GenerationSettings
from inflight.server.bodies.completions import CompletionBody, CompletionSettings
from inflight.server.bodies.structured import FIELDS as FORM_FIELDS
from inflight.server.bodies.tokens import DetokenizeBody, TokenizeBody
from inflight.server.bodies.unknown_fields import UnknownFields
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.errors import ApiError, clients_fault, invalid
from inflight.server.preprocessing.answer_forms import AnswerForms, form_field
from inflight.server.preprocessing.bounds import check_logprobs, check_model, check_samples, max_tokens_of
from inflight.server.preprocessing.prompts import Prompts
from inflight.server.preprocessing.texts import TextReader
from inflight.server.preprocessing.tokenize_answer import TokenizeAnswer
from inflight.server.preprocessing.tools import specs_of, template_tools
from inflight.server.preprocessing.truncation import fitting
from inflight.server.preprocessing.wire import (
    Body,
    Limits,
    Prepared,
    PreparedAnswer,
    PreparedChat,
    PreparedCompletion,
    PreparedTexts,
    Prompt,
    packed,
)
from inflight.text import Tokenizer

LITTLE_PROMPTS = 8  # that are cut in place

S = TypeVar("S", bound=GenerationSettings)


class Preprocessor:
    def __init__(
        self,
        encoder: PromptEncoder,
        tokenizer: Tokenizer | None,
        limits: Limits,
        parsers: ParserChoice | None = None,
    ):
        """parsers: of the model's answers; None where nothing is known of them."""
        self._limits = limits
        self._prompts = Prompts(encoder, tokenizer, limits)
        self._forms = AnswerForms(self._prompts, limits.keeps_grammars, parsers)
        self._texts = TextReader(self._prompts, limits)

    def prepared(self, endpoint: EndpointName, body: Body, history: Body = b"") -> Prepared | PreparedAnswer:
        """history: where answers are stored, the items that come before it, as JSON. Raises ApiError."""
        asked, ignored = self.decoded(endpoint, body)
        prepared = self._prepared(endpoint, asked, history)
        return structs.replace(prepared, ignored=ignored) if ignored else prepared

    def decoded(self, endpoint: EndpointName, body: Body) -> tuple[Any, tuple[str, ...]]:
        """Return the body's fields, and the places of ignored ones that are to be named. Raises ApiError."""
        policy = self._limits.unknown_fields
        unknown = UnknownFields(refuses=policy == "refuse")
        asked = ENDPOINTS[endpoint].body.decode(body, unknown)
        return asked, unknown.names if policy == "warn" else ()

    def _prepared(self, endpoint: EndpointName, asked: Any, history: Body) -> Prepared | PreparedAnswer:
        entry = ENDPOINTS[endpoint]
        if entry.as_texts is not None:
            return self._of_texts(entry.as_texts(asked), endpoint)
        if entry.as_chat is not None:
            with renamed_fields(entry.field_names):
                chat = entry.continued(asked, history) if entry.continued and history else entry.as_chat(asked)
                return self._conversation(chat, endpoint) if entry.prompt_field else self._counted(chat.body)
        match asked:
            case CompletionBody() as asked:
                return self.completion(asked)
            case ChatBody() as asked:
                return self.chat(asked)
            case TokenizeBody() as asked:
                return self._tokenized(asked)
            case asked:
                return self._detokenized(asked)

    def _of_texts(self, asked: AsTexts, endpoint: EndpointName) -> PreparedTexts:
        check_model(asked.settings.model, self._limits.models)
        return self._texts.prepared(asked, endpoint)

    def _check_generates(self) -> None:
        pooler = self._limits.pooler
        if not self._limits.generates and pooler is not None:
            told = f"{counted(len(pooler.labels), 'label')} of each" if pooler.labels else "a vector of each"
            ask = "/classify, /score or /v1/rerank" if pooler.labels else "/v1/embeddings"
            raise invalid(f"This model continues no texts: it tells {told}; ask {ask}.", "model", "unsupported_task")

    def _conversation(self, asked: AsChat, endpoint: EndpointName) -> PreparedChat:
        def prepare(body: ChatBody) -> PreparedChat:
            return self.chat(body, endpoint, asked.repeated, asked.kept_items)

        length = self._limits.max_model_len
        if length is None or not asked.may_begin:
            return prepare(asked.body)
        return fitting(asked, length, max_tokens_of(asked.body) or 1, prepare)

    def _settings_of(self, body: GenerationSettings, kind: type[S]) -> S:
        """The body without its prompt and the form of its answer. Of allowed tokens each once: a list of a million may
        name a hundred."""
        names = [name for name in kind.__struct_fields__ if name not in FORM_FIELDS]
        settings = kind(**{name: getattr(body, name) for name in names})
        if settings.allowed_token_ids:
            allowed, most = sorted(set(settings.allowed_token_ids)), self._limits.vocab_size
            if most is not None and allowed[-1] >= most:
                raise invalid(
                    f"allowed_token_ids names the token id {allowed[-1]}, but the vocabulary has {most} tokens (0 to "
                    f"{most - 1}).",
                    "allowed_token_ids",
                )
            settings.allowed_token_ids = allowed
        return settings

    # -- the endpoints ------------------------------------------------------------------------------------------

    def completion(self, body: CompletionBody, ignored: tuple[str, ...] = ()) -> PreparedCompletion:
        """Raises ApiError."""
        check_model(body.model, self._limits.models)
        self._check_generates()
        samples = body.best_of or body.n or 1
        prompts = self._prompts.listed(body.prompt)
        check_samples(self._limits, len(prompts), samples)
        prepared = [self._prompts.of_completion(one, body) for one in prompts]
        shown = None if body.logprobs is None else max_tokens_of(body)
        scored = body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs
        tokens = sum(len(one.token_ids) // 4 for one in prepared)
        check_logprobs(self._limits, shown, samples * len(prompts), body.logprobs, tokens, scored)
        return PreparedCompletion(
            self._settings_of(body, CompletionSettings),
            tuple(prepared),
            self._forms.of_body(body),
            form_field(body),
            ignored=ignored,
        )

    def chat(
        self, body: ChatBody, kind: EndpointName = "chat", repeated: bytes = b"", kept_items: bytes = b""
    ) -> PreparedChat:
        """kind: the endpoint that was asked; repeated: what its answer repeats of its body; kept_items: what it is
        stored with. Raises ApiError."""
        check_model(body.model, self._limits.models)
        self._check_generates()
        check_samples(self._limits, 1, body.n or 1)
        tools = self._forms.tools(body)
        rendered = self._prompts.rendered(body, tools.shown)
        in_reasoning = self._forms.opens_in_reasoning(rendered.text)
        grammar = self._forms.of_chat(body, tools, rendered.text, in_reasoning)
        tokens = self._prompts.of_chat(body, rendered)
        shown = max_tokens_of(body) if body.logprobs else None
        check_logprobs(self._limits, shown, body.n or 1, body.top_logprobs or 0, len(tokens), body.prompt_logprobs)
        return PreparedChat(
            self._settings_of(body, ChatSettings),
            (Prompt(packed(tokens)),),
            kind,
            grammar=grammar,
            form_field=ENDPOINTS[kind].field_names.get(field := form_field(body), field),
            tools=tools.callable,
            old_functions=tools.old,
            parallel_calls=tools.choice.parallel,
            in_reasoning=in_reasoning,
            repeated=repeated,
            kept_items=kept_items,
        )

    def _counted(self, body: ChatBody) -> PreparedAnswer:
        """Tokens of the prompt that `chat` would make of it."""
        check_model(body.model, self._limits.models)
        tokens = self._prompts.counted(self._prompts.rendered(body, self._forms.tools(body).shown))
        return PreparedAnswer(msgspec.json.encode({"input_tokens": len(tokens)}))

    def _tokenized(self, body: TokenizeBody) -> PreparedAnswer:
        check_model(body.model, self._limits.models)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Give either a prompt or messages.", "prompt")
        tokenizer = self._prompts.tokenizer
        answer = TokenizeAnswer(tokenizer, bool(body.return_token_strs))
        if body.prompt is None:
            rendered = self._prompts.rendered(body, template_tools(specs_of(body.tools)))
            answer.add(self._prompts.of_chat(body, rendered), "messages")
        else:
            for part in self._prompts.in_parts(body.prompt, body.add_special_tokens is not False):
                answer.add(part, "prompt")
        return PreparedAnswer(answer.json(self._limits.max_model_len or 0))

    def _detokenized(self, body: DetokenizeBody) -> PreparedAnswer:
        check_model(body.model, self._limits.models)
        tokenizer = self._prompts.tokenizer
        text = clients_fault(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), "tokens")
        return PreparedAnswer(msgspec.json.encode({"prompt": text}))


def is_little(body: CompletionBody) -> bool:
    """Whether a short body asks for little work too: many prompts are cut one by one, and checked so."""
    return isinstance(body.prompt, str) or len(body.prompt) <= LITTLE_PROMPTS or isinstance(body.prompt[0], int)


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Mistakes are told by the names that the endpoint's own body has. names: of chat's fields, the longer before those
    that they begin with; what begins with a dot stands within one."""
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
