"""Convert prompts (text, token ids, messages) to a `Request`; draw the seed of requests without one."""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, SupportsIndex, TypeVar, Unpack, cast

from inflight.core.stopping import StopText
from inflight.core.types.request import ReasoningText, Request
from inflight.core.types.sampling import NO_SAMPLING, Grammar, PoolingParams, SamplingParams
from inflight.counted import quoted, shortened
from inflight.frontend.fields import RequestFields
from inflight.text import (
    AnswerStart,
    ChatEncoder,
    ChatTemplate,
    ChatTemplateError,
    Conversation,
    EncodedChat,
    RenderedChat,
    TextStream,
    Tokenizer,
)

Prompt = str | Sequence[int] | Mapping[str, Any]
Given = TypeVar("Given")


class PromptError(ValueError):
    """Raised for a prompt that cannot be converted to tokens."""


class PromptEncoder:
    """Encode prompts for one engine. Tokenizer and chat template are optional."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        chat_template: ChatTemplate | None,
        seed: int,
        *,
        parse_control_tokens: bool = False,
        first: int = 0,
        pair_template: str = "",
    ):
        """Make an encoder.

        Args:
            tokenizer: None: prompts are token ids.
            chat_template: None: there are no chats.
            seed: The engine's; request number k without a seed draws one from (seed, k), so that runs repeat.
            parse_control_tokens: Read control tokens that messages spell as tokens, not as text (see `text.control`).
            first: Number of the first request; several encoders of one engine need different numbers.
            pair_template: Source of the template for pairs of texts; empty: the tokenizer joins them.
        """
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._chats = (
            None
            if tokenizer is None or chat_template is None
            else ChatEncoder(tokenizer, chat_template, parse_control_tokens)
        )
        self._pairs = None
        if pair_template and tokenizer is not None and chat_template is not None:
            self._pairs = ChatEncoder(tokenizer, chat_template.of_other_source(pair_template), parse_control_tokens)
        self._seed = seed
        self._numbers = itertools.count(first)
        self._bad_token_ids = lru_cache(maxsize=64)(self._encode_bad_words)  # all prompts of a call have the same

    @property
    def can_chat(self) -> bool:
        return self._tokenizer is not None and self._chat_template is not None and self._chat_template.is_available

    @property
    def template_source(self) -> str:
        """Source of all chat templates; empty: there are none."""
        return "" if self._chat_template is None else self._chat_template.written

    def template_reads(self, variable: str) -> bool:
        """Return whether a chat template names this variable, so that setting it may change a prompt."""
        return re.search(rf"\b{variable}\b", self.template_source) is not None

    @property
    def shows_tools(self) -> bool:
        """Whether the chat template writes tools into the prompt."""
        return self._chat_template is not None and self._chat_template.knows_tools()

    @property
    def shows_system(self) -> bool:
        """Whether the chat template writes system messages into the prompt."""
        return self._chat_template is not None and self._chat_template.shows_system

    def takes_arguments_as_text(self, has_tools: bool) -> bool:
        """Return whether the template reads arguments of tool calls as JSON text, not objects. Raises
        ChatTemplateError."""
        return self._chat_template is not None and self._chat_template.takes_arguments_as_text(has_tools)

    def special_ids(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of those texts that are special tokens, which outputs leave out."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return []
        found = (tokenizer.token_to_id(one) for one in texts)
        return [one for one in found if one in tokenizer.special_token_ids]

    def tokens(self, prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Encode text, token ids, or vLLM's {"prompt": …} and {"prompt_token_ids": …}.

        Args:
            prompt: In one of these forms.
            add_special_tokens: Whether to add the tokenizer's special tokens around text.

        Raises:
            PromptError: The prompt is empty or malformed, or the model has no tokenizer.
        """
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return _checked_ids(prompt["prompt_token_ids"])
            if isinstance(prompt.get("prompt"), str):
                return self.tokens(prompt["prompt"], add_special_tokens=add_special_tokens)
            raise PromptError(f"The prompt has the keys {sorted(prompt)}; give 'prompt' or 'prompt_token_ids'.")
        if isinstance(prompt, str):
            return self._encode(prompt, add_special_tokens=add_special_tokens)
        return _checked_ids(prompt)

    def check_chat(self) -> None:
        """Compile the templates of chats and pairs now, so that an error does not wait for the first request.

        Raises:
            ChatTemplateError: A template cannot be compiled.
            TokenizerError: The tokenizer does not fit.
        """
        if self._chats is not None:
            self._chats.prepare()
        if self._pairs is not None:
            try:
                self._pairs.prepare()
            except ChatTemplateError as error:
                raise ChatTemplateError(f"--score-template holds no template: {error}") from None

    def chat(self, conversation: Conversation) -> EncodedChat:
        """Render and encode a conversation by the model's chat template: `render_chat`, then `chat_tokens`."""
        rendered = self.render_chat(conversation)
        return EncodedChat(rendered.text, self.chat_tokens(rendered))

    def render_chat(self, conversation: Conversation) -> RenderedChat:
        """Render a conversation by the model's chat template; its length is not limited. Raises ChatTemplateError or
        PromptError."""
        return self._for_chats().render(conversation)

    def chat_tokens(self, rendered: RenderedChat) -> tuple[int, ...]:
        """Encode the result of `render_chat`, in which the template has written the control tokens."""
        return _not_empty(self._for_chats().token_ids(rendered))

    def _for_chats(self) -> ChatEncoder:
        if self._chat_template is None:
            raise PromptError("This model has no chat template; give prompt text instead of messages.")
        if self._chats is None:
            raise PromptError("This model has no tokenizer; give prompt_token_ids instead of messages.")
        return self._chats

    def request(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        arrival: float,
        *,
        forced_output_tokens: int | None = None,
        grammar: Grammar | None = None,
        reasoning: ReasoningText | None = None,
        **fields: Unpack[RequestFields],
    ) -> Request:
        """Make a request for an output. Raises PromptError."""
        if params.stop and self._tokenizer is None:
            raise PromptError("stop strings need text, but this model has no tokenizer; use stop_token_ids.")
        bad_token_ids = self._bad_token_ids(params.bad_words) if params.bad_words else ()
        number = next(self._numbers)
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=params,
            seed=self._draw_seed(number) if params.seed is None else params.seed,
            arrival=arrival,
            bad_token_ids=bad_token_ids,
            forced_output_tokens=forced_output_tokens,
            grammar=grammar,
            reasoning=reasoning if params.stop else None,
            **fields,
        )

    def text(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> tuple[int, ...]:
        """Encode a text for pooling.

        Args:
            text: To encode.
            add_special_tokens: Whether to add the tokenizer's special tokens around it.
            max_tokens: Cut the text's end to this many tokens; None: no limit.

        Raises:
            PromptError: The text is empty, or the model has no tokenizer.
            TokenizerError: The text cannot be cut.
        """
        if max_tokens is None or self._tokenizer is None:
            return self._encode(text, add_special_tokens=add_special_tokens)
        if not add_special_tokens:
            return self._encode(text, add_special_tokens=False)[:max_tokens]
        return _not_empty(self._tokenizer.encode_within(text, max_tokens))

    def pair(self, first: str, second: str, max_tokens: int | None = None) -> tuple[tuple[int, ...], int | None]:
        """Encode a pair of texts.

        Args:
            first: The first text; of a template, the query.
            second: The second text; of a template, the document.
            max_tokens: Cut the longer text to this many tokens in all, with a template the second; None: no limit.

        Returns:
            Token ids, and the index of the second text's first token if the model distinguishes the texts.

        Raises:
            PromptError: The model has no tokenizer, or the query alone is too long.
            ChatTemplateError: The template fails.
            TokenizerError: The tokenizer cannot join texts.
        """
        if self._tokenizer is None:
            raise PromptError("This model has no tokenizer, which pairs of texts need; give its tokenizer.json.")
        if self._pairs is not None:
            return self._templated(self._pairs, self._tokenizer, first, second, max_tokens), None
        token_ids, second_at = self._tokenizer.encode_pair(first, second, max_tokens)
        return _not_empty(token_ids), second_at

    def _templated(
        self, pairs: ChatEncoder, tokenizer: Tokenizer, query: str, document: str, max_tokens: int | None
    ) -> tuple[int, ...]:
        """Encode a templated pair; cut the document, since the template's own text must stay."""
        while True:
            messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
            token_ids = pairs.token_ids(pairs.render(Conversation(messages)))
            if max_tokens is None or len(token_ids) <= max_tokens:
                return _not_empty(token_ids)
            length = len(tokenizer.encode(document, add_special_tokens=False))
            left = length - (len(token_ids) - max_tokens)
            if left < 1:
                raise PromptError(
                    f"The template of pairs and the query alone have {len(token_ids) - length} tokens, but "
                    f"{max_tokens} may be read; shorten the query."
                )
            document = document[: len(document) * left // length]

    def pooled(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        pooling: PoolingParams,
        arrival: float,
        *,
        second_text_at: int | None = None,
        **fields: Unpack[RequestFields],
    ) -> Request:
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=NO_SAMPLING,
            pooling=pooling,
            arrival=arrival,
            second_text_at=second_text_at,
            **fields,
        )

    def _encode_bad_words(self, bad_words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Encode each word at the start of a text and after a space, as vLLM does."""
        if self._tokenizer is None:
            raise PromptError("bad_words need text, but this model has no tokenizer; use logit_bias.")
        found: dict[tuple[int, ...], None] = {}
        for word in bad_words:
            for text in (word.lstrip(), f" {word.lstrip()}"):
                token_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
                if not token_ids:
                    raise PromptError(
                        f"bad_words holds {shortened(word)!r}, of which the tokenizer makes 0 tokens; leave it out."
                    )
                found[token_ids] = None
        return tuple(found)

    def _encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        if self._tokenizer is None:
            raise PromptError("This model has no tokenizer; give prompt_token_ids instead of text.")
        return _not_empty(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def _draw_seed(self, number: int) -> int:
        digest = hashlib.blake2b(f"{self._seed}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


def _not_empty(token_ids: Sequence[int]) -> tuple[int, ...]:
    if not token_ids:
        raise PromptError("The prompt is empty: it has 0 tokens; give at least one.")
    return tuple(token_ids)


def _checked_ids(token_ids: object) -> tuple[int, ...]:
    if isinstance(token_ids, str | bytes) or not isinstance(token_ids, Sequence) or not token_ids:
        raise PromptError(f"The prompt is {quoted(token_ids)}; give text or a list of token ids that is not empty.")
    if not all(type(token_id) is int for token_id in token_ids):
        return tuple(_whole(token_id) for token_id in token_ids)
    return tuple(token_ids)


def _whole(token_id: object) -> int:
    """Convert a token id to int; numpy's integers are accepted, True and 1.0 are not."""
    if isinstance(token_id, bool) or not isinstance(token_id, SupportsIndex):
        raise PromptError(f"The prompt's token ids hold {quoted(token_id)}; give whole numbers.")
    return operator.index(token_id)


def several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts as a list; a list of integers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], SupportsIndex)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def for_each(count: int, given: Given | Sequence[Given], kind: type[Given], name: str) -> list[Given]:
    """Return one value per prompt; a single value counts for every prompt. Raises PromptError."""
    many: list[Any] = [given] * count if isinstance(given, kind) else list(cast(Sequence[Any], given))
    if len(many) != count:
        raise PromptError(f"There are {count} prompts, but {len(many)} {name}; give one, or one per prompt.")
    if other := [one for one in many if not isinstance(one, kind)]:
        raise PromptError(f"Among {name} is {quoted(other[0])}; each must be a {kind.__name__}.")
    return many


def prompt_text(prompt: Prompt) -> str | None:
    if isinstance(prompt, Mapping):
        prompt = prompt.get("prompt", ())
    return prompt if isinstance(prompt, str) else None


class StopStrings:
    """Implement core's StopText by the stream that the client reads."""

    def __init__(self, stream: TextStream):
        self._stream = stream

    def push(self, token_id: int) -> str | None:
        self._stream.push((token_id,))
        return self._stream.stopped_by


def text_stream(tokenizer: Tokenizer, request: Request) -> TextStream:
    """Make the text stream of one sample, for the client and for the stop check."""
    params, marks = request.params, request.reasoning
    return TextStream(
        tokenizer,
        request.prompt_token_ids,
        stops=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        stops_from=params.min_tokens,
        shown_token_ids=request.shown_token_ids,
        answer_start=None if marks is None else AnswerStart(marks.begins, marks.ends, marks.is_open),
    )


def stop_text(tokenizer: Tokenizer, request: Request) -> StopText:
    return StopStrings(text_stream(tokenizer, request))
