"""Prompts: token ids of what a body gives the model to read.

What cannot fit is refused before it is tokenized, since megabytes would take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.server.common.conversation import ChatBody, template_messages
from inflight.server.common.prepared import Limits, PreparedChat, Prompt, packed
from inflight.server.errors import ApiError, clients_fault, invalid
from inflight.text import ChatTemplateError, Conversation, RenderedChat, TemplateVariableError, Tokenizer
from inflight.text.in_parts import PART

LONG_FOR_ITS_TOKENS = 6  # characters a token: English has four, and text beyond this seldom fits
COUNTED = 1 << 16  # characters of a text that are counted at once
CUT_TOKENS = 8  # more than a cut between two words can add
_THINKING = ("enable_thinking", "thinking")  # variables of templates: whether the model is to think
_NAMES: dict[type, str] = {str: "text", int: "a token id", list: "a list of token ids"}


class Prompts:
    def __init__(self, encoder: PromptEncoder, tokenizer: Tokenizer | None, limits: Limits):
        self._encoder, self._tokenizer, self._limits = encoder, tokenizer, limits

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ApiError where there is none."""
        if self._tokenizer is None:
            raise invalid("This model has no tokenizer; use token ids.", "model", "unsupported_task")
        return self._tokenizer

    @property
    def template_shows_tools(self) -> bool:
        return self._encoder.shows_tools

    def listed(self, given: str | list[Any]) -> list[str | list[int]]:
        """Return one prompt, or several. Raises ApiError."""
        prompts: list[str | list[int]] = listed(given, "prompt") if given else [given]
        most = self._limits.max_prompts
        if len(prompts) > most:
            sentence = f"There are {len(prompts)} prompts, but a call may have {most}; send several calls."
            raise invalid(sentence, "prompt")
        return prompts

    def of_completion(self, given: str | list[int], *, truncated: int | None, added: bool, shows_text: bool) -> Prompt:
        """Return a prompt to be continued.

        Args:
            truncated: Tokens at its end that are kept; None: all.
            added: Text gets the special tokens that the model expects around it.
            shows_text: The answer repeats its text.
        """
        if isinstance(given, str):
            self._check_length(given, "prompt", truncated)
            tokens = clients_fault(lambda: self._encoder.tokens(given, add_special_tokens=added), "prompt")
        else:
            tokens = clients_fault(lambda: self._encoder.tokens(given), "prompt")
        kept = self._truncated(tokens, truncated)
        length = self._limits.max_model_len
        if length is not None and len(kept) > length:
            raise invalid(
                f"This model's maximum context length is {length} tokens, and the prompt is too long: it has "
                f"{len(kept)} tokens; shorten it.",
                "prompt",
                "context_length_exceeded",
            )
        text = None
        if shows_text:
            text = given if isinstance(given, str) and len(kept) == len(tokens) else self._text(kept)
        return Prompt(packed(kept), text)

    def in_parts(self, text: str, added: bool) -> Iterator[Sequence[int]]:
        """Yield the tokens of a text, part by part where it is long. added: with what the model expects around it."""
        if len(text) <= PART:
            yield clients_fault(lambda: self.tokenizer.encode(text, add_special_tokens=added), "prompt")
            return
        before, after = self._around() if added else ((), ())
        yield before
        parts = self.tokenizer.encode_in_parts(text)
        while (part := clients_fault(lambda: next(parts, None), "prompt")) is not None:
            yield part
        yield after

    def of_text(self, given: str | list[int], field: str, added: bool, most: int | None) -> tuple[int, ...]:
        """Return the tokens of a text.

        Args:
            field: In which it came.
            added: With the special tokens that the model expects around it.
            most: Tokens, beyond which it is truncated at its end.
        """
        if isinstance(given, list):
            tokens = clients_fault(lambda: self._encoder.tokens(given), field)
            return tokens if most is None else tokens[:most]
        text = self._bounded(given, field, most)
        return clients_fault(lambda: self._encoder.text(text, add_special_tokens=added, max_tokens=most), field)

    def of_pair(self, first: str, second: str, field: str, most: int | None) -> tuple[tuple[int, ...], int | None]:
        """Return the tokens of two texts that are read together, and where the second begins. Else as `of_text`."""
        texts = (self._bounded(first, field, most), self._bounded(second, field, most))
        return clients_fault(lambda: self._encoder.pair(*texts, most), field)

    def _bounded(self, text: str, field: str, most: int | None) -> str:
        """Return the text, of one that is to be cut no more than the tokens may stand for. Raises ApiError."""
        self._check_length(text, field, most)
        longest = None if self._tokenizer is None else self._tokenizer.longest_token
        return text if most is None or longest is None else text[: most * longest]

    def rendered(self, body: ChatBody, tools: tuple[dict[str, Any], ...]) -> RenderedChat:
        """Return what the model's template makes of the messages."""
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
                template_messages(body.messages, as_text),
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

    def of_chat(self, body: ChatBody, rendered: RenderedChat) -> tuple[int, ...]:
        """Return the tokens of what the model's template has made of the messages."""
        truncated = body.truncate_prompt_tokens
        self._check_length(rendered.text, "messages", truncated)
        return self._truncated(self.of_rendered(rendered, bool(body.add_special_tokens)), truncated)

    def of_rendered(self, rendered: RenderedChat, added: bool = False) -> tuple[int, ...]:
        """Return all tokens, as many as there are. added: with those that the tokenizer puts around a text."""
        tokens = clients_fault(lambda: self._encoder.chat_tokens(rendered), "messages")
        return self._surrounded(tokens) if added else tokens

    def _variables(self, body: ChatBody) -> dict[str, Any]:
        """Return the template's variables. Some templates read an effort of reasoning; others have a switch alone."""
        ours: dict[str, Any] = {}
        effort, thinks, reads = body.reasoning_effort, body.enable_thinking, self._encoder.template_reads
        if thinks is None and effort is not None:
            thinks = effort not in ("none", "minimal")
        if thinks is not None:
            ours = {name: thinks for name in _THINKING if reads(name)}
        if effort is not None and reads("reasoning_effort"):
            ours["reasoning_effort"] = effort
        return {**ours, **(body.chat_template_kwargs or {})}

    def _surrounded(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        before, after = self._around()
        return (*before, *tokens, *after)

    def _around(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special tokens that the tokenizer puts before and after a text of its own."""
        tokenizer = self.tokenizer
        alone, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
        begin = next(n for n in range(len(whole)) if whole[n : n + len(alone)] == alone)
        return whole[:begin], whole[begin + len(alone) :]

    def _truncated(self, tokens: tuple[int, ...], most: int | None) -> tuple[int, ...]:
        """Return the last `most` tokens; -1: as many as the model takes."""
        if most is None:
            return tokens
        most = (self._limits.max_model_len or len(tokens)) if most < 0 else most
        if most == 0:
            raise invalid(
                "truncate_prompt_tokens is 0, which leaves no prompt; give 1 or more.", "truncate_prompt_tokens"
            )
        return tokens[-most:]

    def _text(self, token_ids: tuple[int, ...]) -> str:
        """Return token ids as text, for echo."""
        if self._tokenizer is None:
            raise invalid("echo needs text, but this model has no tokenizer; leave it out.", "echo")
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _check_length(self, text: str, field: str, truncated: int | None) -> None:
        """Refuse text that cannot fit, however it is tokenized: megabytes would take seconds. Raises ApiError."""
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
        """Count text that hardly fits part by part until it does not: tokenized at once, it would need memory for every
        token. Raises ApiError."""
        tokens = start = 0
        while start < len(text):
            end = text.find(" ", start + COUNTED) if len(text) - start > 2 * COUNTED else len(text)
            end = len(text) if end < 0 or end > start + 2 * COUNTED else end
            tokens += len(clients_fault(lambda part=text[start:end]: tokenizer.encode(part, False), field))  # type: ignore[misc]
            start, tokens = end, tokens - CUT_TOKENS
            if tokens > length:
                raise invalid(
                    f"This model's maximum context length is {length} tokens, and the prompt is too long: the first "
                    f"{end} of its {len(text)} characters are {tokens} tokens or more; shorten it.",
                    field,
                    "context_length_exceeded",
                )


def listed(given: str | list[Any], field: str) -> list[str | list[int]]:
    """Return one text, or several. A list holds texts, token ids, or lists of token ids, and one kind only. Raises
    ApiError."""
    if isinstance(given, str):
        return [given]
    kind = type(some(given, field)[0])
    wrong = next((index for index, one in enumerate(given) if type(one) is not kind), None)
    if wrong is not None:
        raise invalid(
            f"{field} holds {_NAMES[kind]} at 0 and {_NAMES[type(given[wrong])]} at {wrong}; give one kind only.", field
        )
    return [given] if kind is int else given


def some(given: list[Any], field: str) -> list[Any]:
    """Return the list. Raises ApiError where it is empty."""
    if not given:
        raise invalid(f"{field} has 0 entries; give one text or more.", field)
    return given


def fitting(
    body: ChatBody,
    may_begin: Sequence[int],
    max_tokens: int,
    room: int,
    prepare: Callable[[ChatBody], PreparedChat],
) -> PreparedChat:
    """Prepare as much of a conversation as fits, cut at its beginning.

    Args:
        may_begin: Indexes of messages with which it may begin instead, behind its system message.
        max_tokens: Of prompt and answer.
        room: Tokens that are left to the answer.

    Raises:
        ApiError: Where nothing fits, of the shortest.
    """
    kept = body.messages[: may_begin[0]]

    def prepared(number: int) -> PreparedChat:
        return prepare(replace(body, messages=kept + body.messages[may_begin[number] :]))

    def fits(number: int) -> PreparedChat | None:
        try:
            found = prepared(number)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return None
            raise
        tokens = sum(prompt.num_tokens for prompt in found.prompts)
        return found if tokens + room <= max_tokens else None

    first = fits(0)
    if first is not None:
        return first
    low, high, best = 1, len(may_begin), None  # what is cut further is shorter
    while low < high:
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return best or prepared(len(may_begin) - 1)
