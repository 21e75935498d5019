"""Whole texts: what a body about them gives the model to read, as token ids.

Knows pairs that a model reads together, and pairs whose vectors are compared; and that nothing is cut off a text unless
the body says so. What may be asked of a model, `frontend.text_tasks` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from inflight.frontend.text_tasks import TextTaskError, TextTasks, pairs_of
from inflight.server.bodies.as_texts import AsTexts
from inflight.server.call import EndpointName
from inflight.server.errors import invalid
from inflight.server.preprocessing.bounds import check_samples
from inflight.server.preprocessing.prompts import Prompts
from inflight.server.preprocessing.wire import Limits, PreparedTexts, Prompt, packed

MOST_TEXTS = 2048  # of one call, as OpenAI has it
LEAST_TOKENS = 4  # to which a text may be cut: so many stand around a text or a pair
T = TypeVar("T")


class TextReader:
    def __init__(self, prompts: Prompts, limits: Limits):
        self._prompts, self._limits = prompts, limits
        self._tasks = TextTasks(limits.pooler, limits.prompts)

    def prepared(self, asked: AsTexts, kind: EndpointName) -> PreparedTexts:
        """Raises ApiError."""
        _told(lambda: self._tasks.check(asked.told))
        seconds = asked.seconds or []
        count, field = max(len(asked.texts), len(seconds)), asked.second_field or asked.field
        if count > MOST_TEXTS:
            raise invalid(f"{field} has {count} texts, but a call may have {MOST_TEXTS}; send several calls.", field)
        check_samples(self._limits, count, 1)
        most, pairs = self._most(asked), pairs_of(len(asked.texts), len(seconds))
        if seconds and self._tasks.reads_pairs:
            everything = [*asked.texts, *seconds]
            prompts = [self._pair(everything[first], everything[second], field, most) for first, second in pairs]
            pairs = ()
        else:
            before = _told(lambda: self._tasks.before(asked.settings.prompt_name))
            added = asked.settings.add_special_tokens is not False
            prompts = [self._text(one, before, asked.field, added, most) for one in asked.texts]
            prompts += [self._text(one, before, field, added, most) for one in seconds]
        return PreparedTexts(asked.settings, tuple(prompts), kind, asked.told, asked.form, pairs)

    def _text(self, given: str | list[int], before: str, field: str, added: bool, most: int | None) -> Prompt:
        whole = before + given if isinstance(given, str) else given
        return Prompt(packed(self._checked(self._prompts.of_text(whole, field, added, most), field)))

    def _pair(self, first: str | list[int], second: str | list[int], field: str, most: int | None) -> Prompt:
        assert isinstance(first, str) and isinstance(second, str), "pairs come as texts"
        tokens, second_at = self._prompts.of_pair(first, second, field, most)
        return Prompt(packed(self._checked(tokens, field)), second_text_at=second_at)

    def _most(self, asked: AsTexts) -> int | None:
        """Tokens to which texts are cut; None: they are not."""
        wanted, length = asked.settings.truncate_prompt_tokens, self._limits.max_model_len
        if wanted is None or wanted < 0:
            return length if asked.settings.truncate or wanted is not None else None
        if wanted < LEAST_TOKENS:
            raise invalid(
                f"truncate_prompt_tokens is {wanted}, which leaves no text; give {LEAST_TOKENS} or more.",
                "truncate_prompt_tokens",
            )
        return wanted if length is None else min(wanted, length)

    def _checked(self, tokens: tuple[int, ...], field: str) -> tuple[int, ...]:
        length = self._limits.max_model_len
        if length is not None and len(tokens) > length:
            raise invalid(
                f"This model's maximum context length is {length} tokens, and a text is too long: it has {len(tokens)} "
                "tokens; shorten it, or set truncate to true.",
                field,
                "context_length_exceeded",
            )
        return tokens


def _told(ask: Callable[[], T]) -> T:
    """Raises ApiError for what the model does not tell."""
    try:
        return ask()
    except TextTaskError as error:
        raise invalid(str(error), error.field, error.code) from None
