"""The pure part: one body in, what the engine needs of it out, or the sentence that refuses it.

Knows what a body may ask, the tokenizer and the chat template; no engine, no clock, no tenant, so that it may run
anywhere. What cannot fit is refused before it is cut into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import UnsetType

from inflight.core.types.grammar import Grammar
from inflight.frontend.parsers.parser_choice import ParserChoice
from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.server.bodies.as_chat import AsChat
from inflight.server.bodies.chat import ChatBody, ChatSettings
from inflight.server.bodies.common import GenerationSettings
from inflight.server.bodies.completions import DEFAULT_MAX_TOKENS, CompletionBody, CompletionSettings
from inflight.server.bodies.structured import FIELDS as FORM_FIELDS
from inflight.server.bodies.tokens import DetokenizeBody, TokenizeBody
from inflight.server.call import EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.errors import ApiError, clients_fault, invalid
from inflight.server.preprocessing.conversation import template_messages
from inflight.server.preprocessing.structured import grammar_of
from inflight.server.preprocessing.tools import AskedTools, specs_of, template_tools, tools_of
from inflight.server.preprocessing.truncation import fitting
from inflight.server.preprocessing.wire import (
    Body,
    Limits,
    PreparedAnswer,
    PreparedChat,
    PreparedCompletion,
    Prompt,
    packed,
)
from inflight.text import ChatTemplateError, Conversation, RenderedChat, TemplateVariableError, Tokenizer

LONG_FOR_ITS_TOKENS = 6  # characters a token: English has four, and text beyond this seldom fits
PART = 1 << 16  # characters of a text that are counted at once
LITTLE_PROMPTS = 8  # that are cut in place
_THINKING = ("enable_thinking", "thinking")  # variables by which templates are told whether the model is to think
CUT_TOKENS = 8  # more than a cut between two words can add

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
        self._encoder, self._tokenizer, self._limits, self._parsers = encoder, tokenizer, limits, parsers

    def prepared(
        self, endpoint: EndpointName, body: Body, history: Body = b""
    ) -> PreparedCompletion | PreparedChat | PreparedAnswer:
        """history: where answers are stored, the items that come before it, as JSON. Raises ApiError."""
        entry = ENDPOINTS[endpoint]
        asked = entry.body.decode(body)
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

    def completion(self, body: CompletionBody) -> PreparedCompletion:
        """Raises ApiError."""
        self._check_model(body.model)
        samples = body.best_of or body.n or 1
        prompts = self._prompts(body.prompt)
        self._check_samples(len(prompts), samples)
        prepared = [self._completion_prompt(one, body) for one in prompts]
        shown = None if body.logprobs is None else max_tokens_of(body)
        scored = body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs
        tokens = sum(len(one.token_ids) // 4 for one in prepared)
        self._check_logprobs(shown, samples * len(prompts), body.logprobs, tokens, scored)
        return PreparedCompletion(
            self._settings_of(body, CompletionSettings), tuple(prepared), self._form(body), _form_field(body)
        )

    def chat(
        self, body: ChatBody, kind: EndpointName = "chat", repeated: bytes = b"", kept_items: bytes = b""
    ) -> PreparedChat:
        """kind: the endpoint that was asked; repeated: what its answer repeats of its body; kept_items: what it is
        stored with. Raises ApiError."""
        self._check_model(body.model)
        self._check_samples(1, body.n or 1)
        tools = self._tools(body)
        rendered = self._rendered(body, tools.shown)
        in_reasoning = self._parsers is not None and self._parsers.opens_in_prompt(rendered.text)
        grammar = self._grammar(body, tools, rendered.text, in_reasoning)
        tokens = self._chat_tokens(body, rendered)
        shown = max_tokens_of(body) if body.logprobs else None
        self._check_logprobs(shown, body.n or 1, body.top_logprobs or 0, len(tokens), body.prompt_logprobs)
        return PreparedChat(
            self._settings_of(body, ChatSettings),
            (Prompt(packed(tokens)),),
            kind,
            grammar=grammar,
            form_field=ENDPOINTS[kind].field_names.get(field := _form_field(body), field),
            tools=tools.callable,
            old_functions=tools.old,
            parallel_calls=tools.choice.parallel,
            in_reasoning=in_reasoning,
            repeated=repeated,
            kept_items=kept_items,
        )

    def _counted(self, body: ChatBody) -> PreparedAnswer:
        """Tokens of the prompt that `chat` would make of it. As many as there are: who asks may want to shorten it."""
        self._check_model(body.model)
        rendered = self._rendered(body, self._tools(body).shown)
        tokens = clients_fault(lambda: self._encoder.chat_tokens(rendered), "messages")
        return PreparedAnswer(msgspec.json.encode({"input_tokens": len(tokens)}))

    def _tokenized(self, body: TokenizeBody) -> PreparedAnswer:
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise invalid("Give either a prompt or messages.", "prompt")
        tokenizer = self._with_tokenizer()
        if body.messages is None:
            added = True if body.add_special_tokens is None else body.add_special_tokens
            tokens = clients_fault(lambda: tokenizer.encode(body.prompt or "", add_special_tokens=added), "prompt")
        else:
            tokens = list(self._chat_tokens(body, self._rendered(body, template_tools(specs_of(body.tools)))))
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self._limits.max_model_len or 0,
            "tokens": tokens,
        }
        if body.return_token_strs:
            answer["token_strs"] = [tokenizer.id_to_token(token) or "" for token in tokens]
        return PreparedAnswer(msgspec.json.encode(answer))

    def _detokenized(self, body: DetokenizeBody) -> PreparedAnswer:
        self._check_model(body.model)
        tokenizer = self._with_tokenizer()
        text = clients_fault(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), "tokens")
        return PreparedAnswer(msgspec.json.encode({"prompt": text}))

    # -- prompts ------------------------------------------------------------------------------------------------

    def _prompts(self, given: str | list[Any]) -> list[str | list[int]]:
        """One prompt, or several. A list holds texts, token ids, or lists of token ids, and one kind only."""
        if isinstance(given, str) or not given:
            return [given]
        kind = type(given[0])
        wrong = next((place for place, one in enumerate(given) if type(one) is not kind), None)
        if wrong is not None:
            raise invalid(
                f"prompt holds {_NAMES[kind]} at 0 and {_NAMES[type(given[wrong])]} at {wrong}; give one kind only.",
                "prompt",
            )
        if kind is int:
            return [given]
        if len(given) > self._limits.max_prompts:
            raise invalid(
                f"There are {len(given)} prompts, but a call may have {self._limits.max_prompts}; send several calls.",
                "prompt",
            )
        return given

    def _completion_prompt(self, given: str | list[int], body: CompletionBody) -> Prompt:
        if isinstance(given, str):
            self._check_length(given, "prompt", body.truncate_prompt_tokens)
            added = body.add_special_tokens is not False
            tokens = clients_fault(lambda: self._encoder.tokens(given, add_special_tokens=added), "prompt")
        else:
            tokens = clients_fault(lambda: self._encoder.tokens(given), "prompt")
        kept = self._truncated(tokens, body.truncate_prompt_tokens)
        length = self._limits.max_model_len
        if length is not None and len(kept) > length:
            raise invalid(
                f"This model's maximum context length is {length} tokens, and the prompt is too long: it has "
                f"{len(kept)} tokens; shorten it.",
                "prompt",
                "context_length_exceeded",
            )
        text = None
        if body.echo:
            text = given if isinstance(given, str) and len(kept) == len(tokens) else self._text(kept)
        return Prompt(packed(kept), text)

    def _chat_tokens(self, body: ChatBody | TokenizeBody, rendered: RenderedChat) -> tuple[int, ...]:
        """Tokens of what the model's template has made of the messages."""
        truncated = body.truncate_prompt_tokens if isinstance(body, ChatBody) else None
        if isinstance(body, ChatBody):
            self._check_length(rendered.text, "messages", truncated)
        tokens = clients_fault(lambda: self._encoder.chat_tokens(rendered), "messages")
        return self._truncated(self._surrounded(tokens) if body.add_special_tokens else tokens, truncated)

    def _rendered(self, body: ChatBody | TokenizeBody, tools: tuple[dict[str, Any], ...]) -> RenderedChat:
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise invalid(
                "continue_final_message and add_generation_prompt are both true, but a message is either continued or "
                "begun; set one.",
                "continue_final_message",
            )
        begins = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        try:
            as_text = self._encoder.takes_arguments_as_text(bool(tools))
            conversation = Conversation(
                template_messages(body.messages or [], as_text),
                self._variables(body),
                tools or None,
                add_generation_prompt=begins,
                continue_final_message=continues,
            )
            return self._encoder.render_chat(conversation)
        except TemplateVariableError as error:
            raise invalid(str(error), "chat_template_kwargs") from None
        except (PromptError, ChatTemplateError) as error:
            raise invalid(str(error), "messages") from None

    def _variables(self, body: ChatBody | TokenizeBody) -> dict[str, Any]:
        """Of the template. An effort of reasoning is one that some read; others can only be told whether to think."""
        effort, reads = body.reasoning_effort if isinstance(body, ChatBody) else None, self._encoder.template_reads
        ours: dict[str, Any] = {}
        if effort is not None:
            ours = {name: effort not in ("none", "minimal") for name in _THINKING if reads(name)}
            if reads("reasoning_effort"):
                ours["reasoning_effort"] = effort
        return {**ours, **(body.chat_template_kwargs or {})}

    # -- the form of answers ------------------------------------------------------------------------------------

    def _tools(self, body: ChatBody) -> AskedTools:
        tools = tools_of(body)
        if not tools.callable:
            return tools
        field = "functions" if tools.old else "tools"
        if not self._encoder.shows_tools:
            raise invalid(
                f"The field {field!r} is not served with this model: its chat template tells it of no tools; describe "
                "them in a message if the model knows how to use them.",
                field,
                "unsupported_field",
            )
        if self._parsers is None or self._parsers.names.tools is None:
            raise invalid(
                f"The field {field!r} is not served with this model: how it writes calls of tools is not known; name a "
                "--tool-parser at the server's start, or send tool_choice none.",
                field,
                "unsupported_field",
            )
        return tools

    def _grammar(self, body: ChatBody, tools: AskedTools, prompt: str, in_reasoning: bool) -> Grammar | None:
        """Of the answer, behind its reasoning, if it has any."""
        parsers, grammar = self._parsers, self._form(body)
        if parsers is None:
            return grammar
        if tools.callable:
            content, grammar = grammar, self._form_of_calls(parsers, body, tools, grammar)
            if grammar is not content and parsers.calls_cover_reasoning:
                self._check_no_budget(body)
                return grammar
        end = parsers.reasoning_end
        if end is None or not (in_reasoning or (parsers.reasons_unasked and not prompt.rstrip().endswith(end))):
            return grammar
        if grammar is None and body.thinking_token_budget is None:
            return None
        self._check_keeps_grammars("thinking_token_budget")
        ending = tuple(self._with_tokenizer().encode(end, add_special_tokens=False))
        return replace(grammar or Grammar("none"), after_token_ids=ending, max_tokens_before=body.thinking_token_budget)

    def _check_no_budget(self, body: ChatBody) -> None:
        if body.thinking_token_budget is not None:
            raise invalid(
                "thinking_token_budget cannot be kept here: this model writes forced calls and their reasoning in one "
                "form; leave it out, or ask for no calls.",
                "thinking_token_budget",
            )

    def _form(self, body: GenerationSettings) -> Grammar | None:
        """What the body says that its answer must be like."""
        grammar = grammar_of(body)
        if grammar is not None:
            self._check_keeps_grammars(_form_field(body))
        return grammar

    def _form_of_calls(
        self, parsers: ParserChoice, body: ChatBody, tools: AskedTools, content: Grammar | None
    ) -> Grammar | None:
        try:
            grammar = parsers.grammar_of_calls(tools.callable, tools.choice, content)
        except ValueError as error:
            raise invalid(str(error), "tool_choice") from None
        if grammar is not None:
            self._check_keeps_grammars(_form_field(body))
        return grammar

    def _check_keeps_grammars(self, field: str) -> None:
        if not self._limits.keeps_grammars:
            raise invalid(
                f"The field {field!r} is not served: this engine binds no answers to schemas and grammars; ask for "
                "the form in the prompt.",
                field,
                "unsupported_field",
            )

    def _surrounded(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """With the special tokens that the tokenizer puts around a text of its own."""
        tokenizer = self._with_tokenizer()
        alone, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
        begin = next(n for n in range(len(whole)) if whole[n : n + len(alone)] == alone)
        return (*whole[:begin], *tokens, *whole[begin + len(alone) :])

    def _truncated(self, tokens: tuple[int, ...], most: int | None) -> tuple[int, ...]:
        """The last `most` tokens; -1: as many as the model takes."""
        if most is None:
            return tokens
        most = (self._limits.max_model_len or len(tokens)) if most < 0 else most
        if most == 0:
            raise invalid(
                "truncate_prompt_tokens is 0, which leaves no prompt; give 1 or more.", "truncate_prompt_tokens"
            )
        return tokens[-most:]

    def _text(self, token_ids: tuple[int, ...]) -> str:
        """Token ids as text, for echo."""
        if self._tokenizer is None:
            raise invalid("echo needs text, but this model has no tokenizer; leave it out.", "echo")
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _with_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise invalid("This model has no tokenizer; use token ids.")
        return self._tokenizer

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_model(self, name: str | None) -> None:
        check_model(name, self._limits.models)

    def _check_samples(self, prompts: int, samples: int) -> None:
        """More than may wait at once are refused for good: no later time would be better."""
        if samples > self._limits.max_n:
            raise invalid(
                f"{samples} samples are asked for, but a prompt may have {self._limits.max_n}; ask for fewer.", "n"
            )
        most = self._limits.most_sequences
        if most is not None and prompts * samples > most:
            what = f"{prompts} prompts of {samples} samples each" if prompts > 1 else f"{samples} samples"
            raise invalid(
                f"The call asks for {what}, {prompts * samples} in all, but at most {most} may wait at once; ask for "
                "fewer in one call, or raise --max-queued-requests.",
                "n" if samples > most or prompts == 1 else "prompt",
            )

    def _check_length(self, text: str, field: str, truncated: int | None) -> None:
        """Text that cannot fit, however it is cut into tokens, is not cut: megabytes would take seconds."""
        length = self._limits.max_model_len
        if self._tokenizer is None or length is None or truncated is not None or len(text) <= length:
            return
        longest = self._tokenizer.longest_token
        if longest is not None and len(text) > (most := length * longest):
            raise invalid(
                f"This model's maximum context length is {length} tokens, and the prompt is too long: it has "
                f"{len(text)} characters, and a token stands for at most {longest}; shorten it to well below {most}.",
                field,
                "context_length_exceeded",
            )
        if len(text) > length * LONG_FOR_ITS_TOKENS:
            self._check_in_parts(self._tokenizer, text, length, field)

    def _check_in_parts(self, tokenizer: Tokenizer, text: str, length: int, field: str) -> None:
        """Text that hardly fits is counted part by part until it does not: cut whole, it would need memory for every
        token of it."""
        tokens = start = 0
        while start < len(text):
            end = text.find(" ", start + PART) if len(text) - start > 2 * PART else len(text)
            end = len(text) if end < 0 or end > start + 2 * PART else end
            tokens += len(clients_fault(lambda part=text[start:end]: tokenizer.encode(part, False), field))  # type: ignore[misc]
            start, tokens = end, tokens - CUT_TOKENS
            if tokens > length:
                raise invalid(
                    f"This model's maximum context length is {length} tokens, and the prompt is too long: the first "
                    f"{end} of its {len(text)} characters are {tokens} tokens or more; shorten it.",
                    field,
                    "context_length_exceeded",
                )

    def _check_logprobs(
        self, max_tokens: int | None, samples: int, alternatives: int | None, prompt_tokens: int, scored: int | None
    ) -> None:
        """An answer's log-probabilities are made and held whole. max_tokens None: not shown, or not bounded by the
        body; then the server's memory for answers is the bound."""
        output = 0 if max_tokens is None else samples * max_tokens * (1 + (alternatives or 0))
        prompt = 0 if scored is None else prompt_tokens * (1 + scored)
        if output + prompt > self._limits.max_logprobs:
            raise invalid(
                f"The answer may hold {output + prompt:,} log-probabilities (samples × tokens × alternatives), and "
                f"{self._limits.max_logprobs:,} are allowed; lower n, max_tokens or logprobs.",
                "logprobs",
            )


def is_little(body: CompletionBody) -> bool:
    """Whether a short body asks for little work too: many prompts are cut one by one, and checked so."""
    return isinstance(body.prompt, str) or len(body.prompt) <= LITTLE_PROMPTS or isinstance(body.prompt[0], int)


_NAMES: dict[type, str] = {str: "text", int: "a token id", list: "a list of token ids"}


def check_model(name: str | None, models: tuple[str, ...]) -> str:
    """The name as the client wrote it; ours, if it wrote none. Raises ApiError 404."""
    if name is None:
        return models[0] if models else ""
    if models and name not in models:
        raise ApiError(
            404,
            f"The model {name!r} does not exist; this server has {', '.join(models)}.",
            param="model",
            code="model_not_found",
        )
    return name


def max_tokens_of(body: CompletionSettings | ChatSettings) -> int | None:
    """Most output tokens that the body names; None: what there is room for."""
    if isinstance(body, CompletionSettings):
        return DEFAULT_MAX_TOKENS if isinstance(body.max_tokens, UnsetType) else body.max_tokens
    for value in (body.max_completion_tokens, body.max_tokens):
        if not isinstance(value, UnsetType) and value is not None:
            return value
    return None


def _form_field(body: GenerationSettings) -> str:
    """The field that says most of what the answer must be like."""
    named = next((name for name in FORM_FIELDS if getattr(body, name) is not None), None)
    if named is not None or not isinstance(body, ChatBody):
        return named or "response_format"
    if body.thinking_token_budget is not None and not (body.tools or body.functions):
        return "thinking_token_budget"
    return "functions" if body.functions else "tools"


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Mistakes are told by the names that the endpoint's own body has. names: of chat's fields; what
    begins with a dot stands within one."""
    try:
        yield
    except ApiError as error:
        first, *rest = re.split(r"(?=[.\[])", error.param or "", maxsplit=1)
        inner = next((one for one in names if one.startswith(".") and one in "".join(rest)), None)
        if inner is not None:
            error.param = (error.param or "").replace(inner, names[inner], 1)
            error.message = error.message.replace(inner, names[inner], 1)
        if first in names:
            error.param = names[first] + "".join(rest)
            error.message = re.sub(rf"\b{re.escape(first)}\b", names[first], error.message, count=1)
        raise
