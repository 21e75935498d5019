"""Prompts: a conversation's token ids; lengths of any text are checked before it is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.server.common.conversation import ChatBody, template_messages
from inflight.server.common.prepared import Limits
from inflight.server.errors import clients_fault, invalid
from inflight.text import ChatTemplateError, Conversation, RenderedChat, TemplateVariableError, Tokenizer

LONG_FOR_ITS_TOKENS = 6  # characters a token: English has four, and text beyond this seldom fits
COUNTED = 1 << 16  # characters of a text that are counted at once
CUT_TOKENS = 8  # more than a cut between two words can add
_THINKING = ("enable_thinking", "thinking")  # variables of templates: whether the model is to think


class Prompts:
    """Makes prompts, of conversations itself; of other inputs, those who read them.

    Attributes:
        encoder: Of the model. limits: Of bodies.
    """

    def __init__(self, encoder: PromptEncoder, tokenizer: Tokenizer | None, limits: Limits):
        self.encoder, self._tokenizer, self.limits = encoder, tokenizer, limits

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises ApiError where it has none."""
        if self._tokenizer is None:
            raise invalid("This model has no tokenizer; use token ids.", "model", "unsupported_task")
        return self._tokenizer

    @property
    def max_token_chars(self) -> int | None:
        """Return the characters that a token may stand for; None: unknown."""
        return None if self._tokenizer is None else self._tokenizer.longest_token

    @property
    def template_shows_tools(self) -> bool:
        return self.encoder.shows_tools

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
            as_text = self.encoder.takes_arguments_as_text(bool(tools))
            conversation = Conversation(
                template_messages(body.messages, as_text),
                self._variables(body),
                tools or None,
                add_generation_prompt=begins,
                continue_final_message=continues,
            )
            return self.encoder.render_chat(conversation)
        except TemplateVariableError as error:
            raise invalid(str(error), "chat_template_kwargs") from None
        except (PromptError, ChatTemplateError) as error:
            raise invalid(str(error), "messages") from None

    def of_chat(self, body: ChatBody, rendered: RenderedChat) -> tuple[int, ...]:
        """Return the tokens of what the model's template has made of the messages."""
        truncated = body.truncate_prompt_tokens
        self.check_length(rendered.text, "messages", truncated)
        return self.truncated(self.of_rendered(rendered, bool(body.add_special_tokens)), truncated)

    def of_rendered(self, rendered: RenderedChat, added: bool = False) -> tuple[int, ...]:
        """Return all tokens, as many as there are. added: with those that the tokenizer puts around a text."""
        tokens = clients_fault(lambda: self.encoder.chat_tokens(rendered), "messages")
        return self._surrounded(tokens) if added else tokens

    def _variables(self, body: ChatBody) -> dict[str, Any]:
        """Return the template's variables. Some templates read an effort of reasoning; others have a switch alone."""
        ours: dict[str, Any] = {}
        effort, thinks, reads = body.reasoning_effort, body.enable_thinking, self.encoder.template_reads
        if thinks is None and effort is not None:
            thinks = effort not in ("none", "minimal")
        if thinks is not None:
            ours = {name: thinks for name in _THINKING if reads(name)}
        if effort is not None and reads("reasoning_effort"):
            ours["reasoning_effort"] = effort
        return {**ours, **(body.chat_template_kwargs or {})}

    def _surrounded(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        before, after = self.around()
        return (*before, *tokens, *after)

    def around(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special tokens that the tokenizer puts before and after a text of its own."""
        tokenizer = self.tokenizer
        alone, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
        begin = next(n for n in range(len(whole)) if whole[n : n + len(alone)] == alone)
        return whole[:begin], whole[begin + len(alone) :]

    def truncated(self, tokens: tuple[int, ...], most: int | None) -> tuple[int, ...]:
        """Return the last `most` tokens; None: all; -1: as many as the model takes. Raises ApiError."""
        if most is None:
            return tokens
        most = (self.limits.max_model_len or len(tokens)) if most < 0 else most
        if most == 0:
            raise invalid(
                "truncate_prompt_tokens is 0, which leaves no prompt; give 1 or more.", "truncate_prompt_tokens"
            )
        return tokens[-most:]

    def text(self, token_ids: tuple[int, ...]) -> str:
        """Return token ids as text, for echo. Raises ApiError."""
        if self._tokenizer is None:
            raise invalid("echo needs text, but this model has no tokenizer; leave it out.", "echo")
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def check_length(self, text: str, field: str, truncated: int | None) -> None:
        """Refuse text that cannot fit, however it is tokenized: megabytes would take seconds. Raises ApiError."""
        length = self.limits.max_model_len
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
