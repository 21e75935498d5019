"""Read arguments of the Python API that are one prompt or a list of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar, cast

from inflight.counted import quoted
from inflight.frontend.prompts import Prompt, PromptError

Given = TypeVar("Given")


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
