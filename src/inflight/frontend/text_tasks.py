"""Check which pooling tasks a model supports and make their parameters, for the Python API, command line and server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inflight.core.types.sampling import PoolingParams
from inflight.counted import counted, shortened
from inflight.frontend.outputs import ClassificationOutput
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler

TextTask = Literal["vectors", "scores", "classes"]


class TextTaskError(ValueError):
    """Raised for a task that the model does not support. field: the request's field at fault."""

    def __init__(self, sentence: str, field: str = "model", code: str = "unsupported_task"):
        super().__init__(sentence)
        self.field, self.code = field, code


@dataclass(frozen=True, slots=True)
class TextTasks:
    """The pooling tasks of one model. pooler: None of a model without a pooling head."""

    pooler: Pooler | None
    prompts: TextPrompts = NO_PROMPTS

    def check(self, task: TextTask) -> None:
        """Raise TextTaskError if the model does not support the task."""
        labels = 0 if self.pooler is None else len(self.pooler.labels)
        if self.pooler is None:
            raise TextTaskError(
                "This model generates text and has no pooling head; use an embedding model, or set --pooling, without "
                "--backend transformers, if it was trained for vectors."
            )
        if task == "vectors" and labels:
            raise TextTaskError(
                f"This model computes {counted(labels, 'label')} of a text, and no vector; request its classes."
            )
        if task == "classes" and not labels:
            raise TextTaskError("This model computes vectors of texts and has 0 labels; request embeddings.")
        if task == "scores" and labels > 1:
            raise TextTaskError(
                f"This model has {labels} labels, and pairs are scored by models with one; request its classes."
            )

    @property
    def reads_pairs(self) -> bool:
        """Whether the model reads pairs of texts together to score them; if not, their vectors are compared."""
        return self.pooler is not None and bool(self.pooler.labels)

    @property
    def labels(self) -> tuple[str, ...]:
        return () if self.pooler is None else self.pooler.labels

    def before(self, prompt_name: str | None) -> str:
        """Return the model's prompt of this name, to be put before a text. Raises TextTaskError."""
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
        self, task: TextTask, *, dimensions: int | None = None, normalize: bool | None = None, raw: bool = False
    ) -> PoolingParams:
        """Make the pooling parameters of a task, which must be supported. Raises InvalidSampling.

        Args:
            task: Vectors for scores are always normalized.
            dimensions: Length of vectors; None: the model's.
            normalize: Whether to normalize vectors; None: as the model's files say.
            raw: Return scores without the model's activation.
        """
        assert self.pooler is not None, "checked before"
        if self.pooler.labels:
            return PoolingParams(normalize=False, activation="none" if raw else self.pooler.activation)
        normalize = self.pooler.normalize if normalize is None else normalize
        return PoolingParams(normalize=task == "scores" or normalize, dimensions=dimensions)


def pairs_of(firsts: int, seconds: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of indices in the list of first texts followed by second texts. firsts: 1, or `seconds`."""
    return tuple((index if firsts > 1 else 0, firsts + index) for index in range(seconds))


def classified(probs: Sequence[float], labels: Sequence[str]) -> ClassificationOutput:
    return ClassificationOutput(list(probs), labels[max(range(len(probs)), key=probs.__getitem__)])
