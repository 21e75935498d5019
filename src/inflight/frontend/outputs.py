"""Collect the events of a request into its output: text, token ids, log-probabilities, finish reasons.

Names are vLLM's. Without streaming the same deltas are collected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from inflight.core.types.events import Event, Finish, FinishedEvent, PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import TokenLogprob
from inflight.core.types.timings import Timings
from inflight.frontend.answers import AnswerParsing, ParsedAnswer
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta
from inflight.frontend.prompts import text_stream
from inflight.text import TextStream, Tokenizer

Outputs = TypeVar("Outputs")


class Logprob(Struct, frozen=True):
    """The log-probability of one token. rank: 1 for the likeliest; None: not among the requested alternatives."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionOutput(Struct, frozen=True):
    """One sample.

    Attributes:
        finish_reason: "stop", "length", "abort", "error", or None while it runs.
        stop_reason: The stop string or stop token id that ended it.
        detail: An error message, if there is one.
    """

    index: int
    text: str
    token_ids: list[int]
    token_logprobs: list[TokenLogprob] | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    detail: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        return None if self.token_logprobs is None else sum(entry.logprob for entry in self.token_logprobs)


class RequestOutput(Struct, frozen=True):
    """All samples of one request.

    Attributes:
        timings: None until the request has ended; num_cached_tokens likewise.
        prompt_logprobs: If requested, one entry per prompt token: None for the first one, then token id → Logprob of
            the token itself and of the alternatives.
        prompt_token_logprobs: The same from the second token on, in the engine's form.
        embedding: Of a pooling request.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    timings: Timings | None
    prompt_token_logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    embedding: tuple[float, ...] | None = None

    @property
    def num_cached_tokens(self) -> int | None:
        return None if self.timings is None else self.timings.cached_tokens


class EmbeddingOutput(Struct, frozen=True):
    embedding: list[float]


class ScoringOutput(Struct, frozen=True):
    score: float


class ClassificationOutput(Struct, frozen=True):
    """The probabilities of all labels, in the model's order, and the likeliest label."""

    probs: list[float]
    label: str


class PoolingRequestOutput(Struct, Generic[Outputs], frozen=True):
    """The output of a pooling request, for one text or one pair of texts."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: Outputs
    timings: Timings | None = None
    finished: bool = True


class Added(Struct):
    """The new deltas of a parsed sample. logprobs: of the content's tokens."""

    deltas: list[AnswerDelta] = []
    logprobs: list[TokenLogprob] = []


class _Sample(Struct):
    """One sample. pending: log-probabilities of the answer's pending tokens."""

    stream: TextStream | None
    answer: ParsedAnswer | None = None
    added: Added | None = None
    pending: list[TokenLogprob] = []
    token_ids: list[int] = []
    logprobs: _Logprobs | None = None
    finish: Finish | None = None


class _Logprobs(Struct):
    """Log-probabilities in the engine's form, and the first ones of them with token texts."""

    entries: list[TokenLogprob] = []
    named: list[dict[int, Logprob]] = []


class OutputCollector:
    """The output of one request so far."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        prompt: str | None = None,
        deltas_only: bool = False,
        parsing: AnswerParsing | None = None,
    ):
        """Start with no events.

        Args:
            request: Whose events are taken.
            tokenizer: None: outputs have no text.
            prompt: Its text, for the output.
            deltas_only: Do not store tokens and log-probabilities: the caller reads them from the events, and those of
                parsed samples by `added`.
            parsing: Split samples into content, reasoning and tool calls.
        """
        self.request = request
        self.prompt = prompt
        self.timings: Timings | None = None
        self.embedding: tuple[float, ...] | None = None
        self.output_tokens = 0  # of all samples, so far
        self.cached_tokens = 0  # of the prompt; known from the first token on
        self._stores_tokens = not deltas_only
        self._tokenizer = tokenizer
        self._prompt = None if request.params.prompt_logprobs is None else _Logprobs()
        self._samples = [
            _Sample(
                None if tokenizer is None or request.pooling is not None else text_stream(tokenizer, request),
                None if parsing is None else parsing.new(),
                Added() if parsing is not None and deltas_only else None,
            )
            for _ in range(request.params.n)
        ]

    @property
    def finished(self) -> bool:
        return self.timings is not None

    @property
    def finishes(self) -> list[Finish | None]:
        """How each sample ended; None while it runs."""
        return [sample.finish for sample in self._samples]

    @property
    def prompt_scores(self) -> list[TokenLogprob]:
        """Log-probabilities of the prompt's tokens from the second on, so far; empty if not requested."""
        return [] if self._prompt is None else self._prompt.entries

    @property
    def longest_output(self) -> int:
        """Number of tokens of the longest sample, so far."""
        return max(len(sample.token_ids) for sample in self._samples)

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens of all samples, so far."""
        return sum(one.answer.reasoning_tokens for one in self._samples if one.answer is not None)

    def answer(self, sample_index: int) -> ParsedAnswer:
        """Return the parsed answer of a sample; only with `parsing`."""
        answer = self._samples[sample_index].answer
        assert answer is not None, "samples are parsed"
        return answer

    def added(self, sample_index: int) -> Added:
        """Remove and return the new deltas of a sample; only with `parsing` and `deltas_only`."""
        sample = self._samples[sample_index]
        assert sample.added is not None, "samples are parsed, deltas alone are stored"
        added, sample.added = sample.added, Added()
        return added

    def take(self, event: Event) -> tuple[int, str]:
        """Take an event of this request; return the index of its sample and the new text."""
        if isinstance(event, PromptScoredEvent):
            assert self._prompt is not None  # requested
            self._prompt.entries.extend(event.logprobs)
            return 0, ""
        if isinstance(event, PooledEvent):
            self.embedding = event.vector
            return 0, ""
        if isinstance(event, FinishedEvent):
            self.timings, self.cached_tokens = event.timings, event.timings.cached_tokens
            ends = zip(self._samples, event.finishes, strict=True)
            return 0, "".join([self._end(sample, finish) for sample, finish in ends])
        sample = self._samples[event.sample_index]
        self.output_tokens += len(event.token_ids)
        self.cached_tokens = self.cached_tokens or event.cached_tokens
        if self._stores_tokens:
            sample.token_ids.extend(event.token_ids)
        if sample.answer is not None:
            text = self._parse(sample, sample.answer, event)
        else:
            self._store_logprobs(sample, event.logprobs)
            text = "" if sample.stream is None else sample.stream.push(self._visible(event))
        if event.finish is not None:
            text += self._end(sample, event.finish)
        return event.sample_index, text

    def output(self) -> RequestOutput:
        """Return the whole output so far."""
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            outputs=[
                replace(one, logprobs=self._all_named(sample.logprobs)) if sample.logprobs is not None else one
                for one, sample in zip(self.completions(), self._samples, strict=True)
            ],
            finished=self.finished,
            timings=self.timings,
            prompt_token_logprobs=None if self._prompt is None else list(self._prompt.entries),
            prompt_logprobs=None if self._prompt is None else [None, *self._all_named(self._prompt)],
            embedding=self.embedding,
        )

    def completions(self) -> list[CompletionOutput]:
        """Return the samples so far, without token texts of log-probabilities."""
        return [self._completion(index, sample) for index, sample in enumerate(self._samples)]

    def forget(self) -> None:
        """Drop tokens and log-probabilities; keep text, counts and finish reasons."""
        self._prompt = None
        for sample in self._samples:
            sample.token_ids, sample.logprobs = [], None

    def _parse(self, sample: _Sample, answer: ParsedAnswer, event: TokensEvent) -> str:
        """Parse token by token, to attribute each token to reasoning, content or marks."""
        shown, texts = len(self._visible(event)), []
        for index, token_id in enumerate(event.token_ids):
            text = "" if sample.stream is None or index >= shown else sample.stream.push((token_id,))
            texts.append(text)
            sample.pending += () if event.logprobs is None else event.logprobs[index : index + 1]
            self._add(sample, answer, answer.push(text))
        return "".join(texts)

    def _add(self, sample: _Sample, answer: ParsedAnswer, deltas: list[AnswerDelta]) -> None:
        """Add deltas with the log-probabilities of the content's tokens; those of marks are dropped."""
        num_content, pending = sum(one.tokens for one in deltas if isinstance(one, ContentDelta)), sample.pending
        logprobs, sample.pending = pending[:num_content], pending[max(0, len(pending) - answer.pending_tokens) :]
        self._store_logprobs(sample, logprobs)
        if sample.added is not None:
            sample.added.deltas += deltas
            sample.added.logprobs += logprobs

    def _store_logprobs(self, sample: _Sample, logprobs: Sequence[TokenLogprob] | None) -> None:
        if self._stores_tokens and logprobs is not None:
            sample.logprobs = sample.logprobs or _Logprobs()
            sample.logprobs.entries.extend(logprobs)

    def _visible(self, event: TokensEvent) -> tuple[int, ...]:
        """Return the event's tokens without the one that ended the output, which is not part of its text."""
        finish = event.finish
        ended_by_token = finish is not None and finish.reason == "stop" and not isinstance(finish.stopped_by, str)
        if ended_by_token and not self.request.params.include_stop_str_in_output:
            return event.token_ids[:-1]
        return event.token_ids

    def _end(self, sample: _Sample, finish: Finish) -> str:
        if sample.finish is not None:
            return ""
        sample.finish = finish
        text = "" if sample.stream is None else sample.stream.finish()
        if sample.answer is not None:
            self._add(sample, sample.answer, sample.answer.finish(text))
        return text

    def _completion(self, index: int, sample: _Sample) -> CompletionOutput:
        finish = sample.finish
        return CompletionOutput(
            index=index,
            text="" if sample.stream is None else sample.stream.text,
            token_ids=list(sample.token_ids),
            token_logprobs=None if sample.logprobs is None else list(sample.logprobs.entries),
            logprobs=None,
            finish_reason=None if finish is None else finish.reason,
            stop_reason=None if finish is None else finish.stopped_by,
            detail=None if finish is None else finish.detail,
        )

    def _all_named(self, logprobs: _Logprobs) -> list[dict[int, Logprob]]:
        """Return the log-probabilities with token texts; each is decoded once, however often an output is read."""
        logprobs.named.extend(self._named(entry) for entry in logprobs.entries[len(logprobs.named) :])
        return list(logprobs.named)

    def _named(self, entry: TokenLogprob) -> dict[int, Logprob]:
        named = {entry.token_id: Logprob(entry.logprob, None, self._name(entry.token_id))}
        for rank, (token_id, value) in enumerate(entry.top, 1):
            named[token_id] = Logprob(value, rank, self._name(token_id))
        return named

    def _name(self, token_id: int) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode([token_id], skip_special_tokens=False)
