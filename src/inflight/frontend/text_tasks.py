"""What may be asked of a model about whole texts, and how its numbers are wanted: once for the Python API, the command
line and the server.

Knows how a model makes its numbers (`models.spec.Pooler`) and what may stand before texts; no tokens, no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.core.types.sampling import PoolingParams
from inflight.counted import counted, shortened
from inflight.frontend.outputs import ClassificationOutput
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler

Told = Literal["vectors", "scores", "classes"]


class TextTaskError(ValueError):
    """The model does not tell what is asked. field: the setting that is to blame."""

    def __init__(self, sentence: str, field: str = "model", code: str = "unsupported_task"):
        super().__init__(sentence)
        self.field, self.code = field, code


@dataclass(frozen=True, slots=True)
class TextTasks:
    """pooler: None of a model that tells nothing of texts."""

    pooler: Pooler | None
    prompts: TextPrompts = NO_PROMPTS

    def check(self, told: Told) -> None:
        """Raises TextTaskError."""
        labels = 0 if self.pooler is None else len(self.pooler.labels)
        if self.pooler is None:
            raise TextTaskError(
                "This model continues texts, and tells nothing of them; set --pooling where it was trained for "
                "vectors, or take a model that was."
            )
        if told == "vectors" and labels:
            raise TextTaskError(
                f"This model tells {counted(labels, 'label')} of a text, and no vector; ask for its classes."
            )
        if told == "classes" and not labels:
            raise TextTaskError("This model tells vectors of texts, which have 0 labels; ask for embeddings.")
        if told == "scores" and labels > 1:
            raise TextTaskError(
                f"This model tells {labels} labels of a text, and pairs are scored by models that tell one; ask for "
                "its classes."
            )

    @property
    def reads_pairs(self) -> bool:
        """Whether the model scores pairs that it reads together; else their vectors are compared."""
        return self.pooler is not None and bool(self.pooler.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        return () if self.pooler is None else self.pooler.labels

    def before(self, prompt_name: str | None) -> str:
        """What is put before a text. Raises TextTaskError."""
        known = self.prompts.prompts
        if prompt_name is None:
            return known.get(self.prompts.default or "", "")
        if prompt_name not in known:
            there = ", ".join(known) or "none"
            raise TextTaskError(
                f"prompt_name is {shortened(prompt_name)!r}, but this model's prompts are: {there}.",
                "prompt_name",
                "invalid_value",
            )
        return known[prompt_name]

    def params(
        self, told: Told, *, dimensions: int | None = None, normalize: bool | None = None, raw: bool = False
    ) -> PoolingParams:
        """raw: scores as the model gives them. Vectors that are compared have length 1. Raises InvalidSampling."""
        assert self.pooler is not None, "checked before"
        if self.pooler.labels:
            return PoolingParams(normalize=False, activation="none" if raw else self.pooler.activation)
        usual = self.pooler.normalize if normalize is None else normalize
        return PoolingParams(normalize=told == "scores" or usual, dimensions=dimensions)


def pairs_of(firsts: int, seconds: int) -> tuple[tuple[int, int], ...]:
    """Of texts that stand one behind the other, the first ones before the seconds: which belong together. firsts: as
    many as seconds, or one."""
    return tuple((place if firsts > 1 else 0, firsts + place) for place in range(seconds))


def classified(probs: Sequence[float], labels: Sequence[str]) -> ClassificationOutput:
    return ClassificationOutput(list(probs), labels[max(range(len(probs)), key=probs.__getitem__)])
