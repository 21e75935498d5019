"""Define the public Python API: `LLM`, `AsyncEngine`, `SamplingParams`, with vLLM's names and defaults."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from inflight.async_engine import AsyncEngine, split_settings
from inflight.build import build_engines
from inflight.config.setting import Resolved
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import PoolingParams
from inflight.core.types.sampling import SamplingParams as EngineParams
from inflight.engine.event_stream import EngineStopped
from inflight.engine.loop import EngineLoop
from inflight.frontend.offline import Offline
from inflight.frontend.outputs import (
    ClassificationOutput,
    CompletionOutput,
    EmbeddingOutput,
    Logprob,
    OutputCollector,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
)
from inflight.frontend.prefill_engines import PrefillEngines
from inflight.frontend.prompts import Prompt, PromptError, for_each, prompt_text, several
from inflight.frontend.structured_outputs import SamplingParams, StructuredOutputsParams, split
from inflight.frontend.text_tasks import TextTasks, classified, pairs_of
from inflight.text import Conversation

__all__ = [
    "LLM",
    "AsyncEngine",
    "ClassificationOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "Logprob",
    "PoolingRequestOutput",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "StructuredOutputsParams",
]

Outputs = TypeVar("Outputs")


class LLM:
    """A model for offline use.

    >>> LLM().chat([{"role": "user", "content": "What is continuous batching?"}])[0].outputs[0].text
    """

    def __init__(
        self, model: str | None = None, *, record: str | Path | None = None, prefill_engines: int = 0, **settings: Any
    ):
        """Load a model.

        Args:
            model: Name or folder; None: the built-in one.
            record: File that the run is recorded in.
            prefill_engines: Number of engines that compute prompts for the one that decodes.
            settings: Fields of `EngineSettings` and `SchedulingSettings`.
        """
        self._engine, self._prefill = build_engines(*split_settings(model, settings), record, prefill_engines)
        self._offline = Offline(self._engine.loop, self._engine.tokenizer, self._prefill)
        self._numbers = itertools.count()
        # Without a call of close(), no thread keeps the model in memory.
        self._close = weakref.finalize(self, _close_both, self._engine.loop, self._prefill)
        self._tasks = TextTasks(self._engine.model.pooler, self._engine.text_prompts)

    @property
    def settings(self) -> dict[str, Resolved]:
        """Every setting in force, with its reason."""
        return self._engine.settings

    @property
    def capacity(self) -> Capacity:
        return self._engine.capacity

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        session_id: str | Sequence[str] | None = None,
        program_id: str | Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        """Generate one output per prompt, in order.

        Args:
            prompts: Text, a list of token ids, {"prompt_token_ids": […]}, or a list of these.
            sampling_params: For all prompts, or one for each.
            adapter: Name of one of `lora`.
            session_id: Conversation of the prompts (`kv_eviction="sessions"`), or one for each prompt.
            program_id: Program (run of an agent) that the prompts are calls of (`policy="program"`), or one for each;
                None: the conversation.

        Raises:
            PromptError: A prompt is malformed; nothing is computed.
            RequestRefused: The engine refuses a request.
            AdapterNameError: There is no such adapter.
        """
        many = several(prompts)
        encoded = [self._engine.prompts.tokens(prompt) for prompt in many]
        return self._run(
            encoded, [prompt_text(prompt) for prompt in many], sampling_params, adapter, session_id, program_id
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | None = None,
        session_id: str | Sequence[str] | None = None,
        program_id: str | Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several.

        Args:
            messages: A list of {"role": …, "content": …}, or a list of such lists.
            sampling_params: As in `generate`; None: the likeliest tokens, without a limit.
            adapter: As in `generate`.
            session_id: As in `generate`.
            program_id: As in `generate`.
        """
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        encoded = [self._engine.prompts.chat(Conversation(one)) for one in conversations]
        return self._run(
            [one.token_ids for one in encoded],
            [one.text for one in encoded],
            sampling_params or SamplingParams(temperature=0, max_tokens=None),
            adapter,
            session_id,
            program_id,
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
        adapter: str | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Return a vector of each text, in order.

        Args:
            prompts: As in `generate`.
            dimensions: Return only the first numbers of each vector.
            normalize: To length 1; None: as the model's files say.
            prompt_name: One of the model's prompts, put before each text.
            truncate: Cut the end of a text that is too long, instead of refusing it.
            adapter: As in `generate`.

        Raises:
            TextTaskError: The model computes no vectors, or has no such prompt.
            PromptError: A text is malformed.
            RequestRefused: The engine refuses a request.
            AdapterNameError: There is no such adapter.
        """
        self._tasks.check("vectors")
        before, params = (
            self._tasks.before(prompt_name),
            self._tasks.params("vectors", dimensions=dimensions, normalize=normalize),
        )
        texts = [self._text_tokens(one, before, truncate) for one in several(prompts)]
        found = self._pool([(tokens, None) for tokens in texts], params, adapter)
        return [_pooled(one, EmbeddingOutput(list(one.embedding or ()))) for one in found]

    def score(
        self, text_1: str | Sequence[str], text_2: str | Sequence[str], *, truncate: bool = False
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Score pairs of texts: a model that reads pairs returns its score, any other the cosine of both vectors.

        Args:
            text_1: One text, compared with each of `text_2`, or as many as these.
            text_2: The second texts.
            truncate: As in `embed`.

        Raises:
            PromptError: The numbers of texts differ. Other errors as in `embed`.
        """
        self._tasks.check("scores")
        firsts, seconds = ([one] if isinstance(one, str) else list(one) for one in (text_1, text_2))
        if len(firsts) not in (1, len(seconds)):
            raise PromptError(f"There are {len(firsts)} texts and {len(seconds)}; give one, or as many of both.")
        pairs, params = pairs_of(len(firsts), len(seconds)), self._tasks.params("scores")
        everything = [*firsts, *seconds]
        if self._tasks.reads_pairs:
            most = self._engine.capacity.max_model_len if truncate else None
            read = [self._engine.prompts.pair(everything[i], everything[j], most) for i, j in pairs]
            return [_pooled(one, ScoringOutput((one.embedding or (0.0,))[0])) for one in self._pool(read, params)]
        before = self._tasks.before(None)
        found = self._pool([(self._text_tokens(one, before, truncate), None) for one in everything], params)
        vectors = [one.embedding or () for one in found]
        scores = [math.fsum(a * b for a, b in zip(vectors[i], vectors[j], strict=True)) for i, j in pairs]
        return [_pooled(found[j], ScoringOutput(score)) for (_, j), score in zip(pairs, scores, strict=True)]

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, truncate: bool = False
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Return the likeliest label of each text, with the probabilities of all. Errors as in `embed`."""
        self._tasks.check("classes")
        texts = [self._text_tokens(one, "", truncate) for one in several(prompts)]
        found = self._pool([(tokens, None) for tokens in texts], self._tasks.params("classes"))
        return [_pooled(one, classified(one.embedding or (), self._tasks.labels)) for one in found]

    def close(self) -> None:
        """Close the record file and the prefill engines; the model's memory is freed with the object."""
        self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[tuple[int, ...]],
        texts: Sequence[str | None],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        adapter: str | None,
        session_id: str | Sequence[str] | None,
        program_id: str | Sequence[str] | None,
    ) -> list[RequestOutput]:
        changed = self._engine.adapters.known(adapter)
        wanted = SamplingParams() if sampling_params is None else sampling_params
        params = for_each(len(prompts), wanted, EngineParams, "sampling_params")
        sessions = for_each(len(prompts), "" if session_id is None else session_id, str, "session_id")
        programs = for_each(len(prompts), "" if program_id is None else program_id, str, "program_id")
        now = self._engine.loop.clock.now()

        def requests() -> Iterator[tuple[Request, str | None]]:
            for token_ids, text, one, session, program in zip(prompts, texts, params, sessions, programs, strict=True):
                plain, grammar = split(one)
                name = str(next(self._numbers))
                make = self._engine.prompts.request
                of: dict[str, Any] = {"grammar": grammar, "adapter": changed, "session": session, "program": program}
                yield make(name, token_ids, plain, now, **of), text

        return self._answers(requests())

    def _pool(
        self, prompts: Sequence[tuple[tuple[int, ...], int | None]], params: PoolingParams, adapter: str | None = None
    ) -> list[RequestOutput]:
        """Run pooling requests. prompts: token ids, and the index of the second text of a pair."""
        changed = self._engine.adapters.known(adapter)
        now, make = self._engine.loop.clock.now(), self._engine.prompts.pooled
        found = self._answers(
            (make(str(next(self._numbers)), tokens, params, now, second_text_at=second_at, adapter=changed), None)
            for tokens, second_at in prompts
        )
        for one in found:
            if one.outputs[0].finish_reason == "error":
                raise EngineStopped(one.outputs[0].detail or "The step failed.")
        return found

    def _answers(self, requests: Iterable[tuple[Request, str | None]]) -> list[RequestOutput]:
        if not self._close.alive:
            raise EngineStopped("The engine was closed; make a new LLM.")
        collectors: list[OutputCollector] = []
        self._offline.abort_all()  # requests of an earlier call that was interrupted twice
        try:
            for request, text in requests:
                collectors.append(self._offline.add(request, text))
            for _ in self._offline.run():
                pass
        finally:
            self._offline.abort_all()
        return [collector.output() for collector in collectors]

    def _text_tokens(self, prompt: Prompt, before: str, truncate: bool) -> tuple[int, ...]:
        """Encode a text for pooling."""
        prompts, most = self._engine.prompts, self._engine.capacity.max_model_len if truncate else None
        if (text := prompt_text(prompt)) is None:
            return prompts.tokens(prompt)[:most]
        return prompts.text(before + text, max_tokens=most)


def _close_both(loop: EngineLoop, prefill: PrefillEngines) -> None:
    try:
        loop.close()
    finally:
        prefill.close()


def _pooled(output: RequestOutput, outputs: Outputs) -> PoolingRequestOutput[Outputs]:
    return PoolingRequestOutput(output.request_id, output.prompt_token_ids, outputs, output.timings)
