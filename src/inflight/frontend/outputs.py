"""From the engine's events to outputs: text, token ids, log-probabilities, how it ended. Names as vLLM's users know.

Knows one request at a time. Streaming is taking the deltas as they come; not streaming is the same, collected.
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
    """rank: 1 for the likeliest; None when it was not among the alternatives asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionOutput(Struct, frozen=True):
    """One sample. finish_reason: "stop", "length", "abort", "error", or None while it runs.

    stop_reason: the stop string or stop token id that ended it. detail: a sentence where the end needs one.
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
    """All samples of one request. timings and num_cached_tokens come with its end.

    prompt_logprobs: if asked, one entry per prompt token: None for the first, which nothing predicts, then token id →
    Logprob of the token itself and of the alternatives. prompt_token_logprobs: the same from the second token on, as
    the engine tells it. embedding: of a pooled request.
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
    """probs: of all labels, in their order. label: of the largest."""

    probs: list[float]
    label: str


class PoolingRequestOutput(Struct, Generic[Outputs], frozen=True):
    """What a model tells of one text, or of one pair of texts."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: Outputs
    timings: Timings | None = None
    finished: bool = True


class Added(Struct):
    """What is new of a parsed sample. logprobs: of the content's tokens."""

    deltas: list[AnswerDelta] = []
    logprobs: list[TokenLogprob] = []


class _Sample(Struct):
    """held: log-probabilities of tokens that may turn out to be of the content."""

    stream: TextStream | None
    answer: ParsedAnswer | None = None
    added: Added | None = None
    held: list[TokenLogprob] = []
    token_ids: list[int] = []
    logprobs: _Logprobs | None = None
    finish: Finish | None = None


class _Logprobs(Struct):
    """Log-probabilities as they came, and the first so many of them with names."""

    entries: list[TokenLogprob] = []
    named: list[dict[int, Logprob]] = []


class OutputCollector:
    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        prompt: str | None = None,
        deltas_only: bool = False,
        parsing: AnswerParsing | None = None,
    ):
        """deltas_only: of tokens and their log-probabilities nothing is kept; who takes has them from the events, and
        of parsed samples from `added`. parsing: samples are told apart into content, reasoning and calls."""
        self.request = request
        self.prompt = prompt
        self.timings: Timings | None = None
        self.embedding: tuple[float, ...] | None = None
        self.output_tokens = 0  # of all samples, so far
        self.cached_tokens = 0  # of the prompt; known from the first token on
        self._keeps = not deltas_only
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
        """Of the prompt's tokens from the second on, so far; empty where nobody asked."""
        return [] if self._prompt is None else self._prompt.entries

    @property
    def longest_output(self) -> int:
        """Tokens of the longest sample, so far."""
        return max(len(sample.token_ids) for sample in self._samples)

    @property
    def reasoning_tokens(self) -> int:
        """Of all samples, so far."""
        return sum(one.answer.reasoning_tokens for one in self._samples if one.answer is not None)

    def answer(self, sample_index: int) -> ParsedAnswer:
        """Of a request whose samples are parsed: all that has come of one."""
        answer = self._samples[sample_index].answer
        assert answer is not None, "asked of parsed samples"
        return answer

    def added(self, sample_index: int) -> Added:
        """What is new of a sample since this was asked last, where samples are parsed and deltas wanted."""
        sample = self._samples[sample_index]
        assert sample.added is not None, "asked of parsed samples"
        added, sample.added = sample.added, Added()
        return added

    def take(self, event: Event) -> tuple[int, str]:
        """Take in an event of this request; returns the sample it concerns and its new text."""
        if isinstance(event, PromptScoredEvent):
            assert self._prompt is not None  # nobody scores what was not asked
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
        if self._keeps:
            sample.token_ids.extend(event.token_ids)
        if sample.answer is not None:
            text = self._parse(sample, sample.answer, event)
        else:
            self._keep_logprobs(sample, event.logprobs)
            text = "" if sample.stream is None else sample.stream.push(self._visible(event))
        if event.finish is not None:
            text += self._end(sample, event.finish)
        return event.sample_index, text

    def output(self) -> RequestOutput:
        """Everything so far."""
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
        """The samples so far; their log-probabilities without names."""
        return [self._completion(index, sample) for index, sample in enumerate(self._samples)]

    def forget(self) -> None:
        """Keep nothing of what has come but text, counts and ends."""
        self._prompt = None
        for sample in self._samples:
            sample.token_ids, sample.logprobs = [], None

    def _parse(self, sample: _Sample, answer: ParsedAnswer, event: TokensEvent) -> str:
        """Token by token: each is one of the reasoning, of the content, or of neither."""
        shown, texts = len(self._visible(event)), []
        for place, token_id in enumerate(event.token_ids):
            text = "" if sample.stream is None or place >= shown else sample.stream.push((token_id,))
            texts.append(text)
            sample.held += () if event.logprobs is None else event.logprobs[place : place + 1]
            self._tell(sample, answer, answer.push(text))
        return "".join(texts)

    def _tell(self, sample: _Sample, answer: ParsedAnswer, deltas: list[AnswerDelta]) -> None:
        """With the log-probabilities of the content's tokens; those of marks are nobody's."""
        told = sum(one.tokens for one in deltas if isinstance(one, ContentDelta))
        logprobs, sample.held = sample.held[:told], sample.held[max(0, len(sample.held) - answer.held_tokens) :]
        self._keep_logprobs(sample, logprobs)
        if sample.added is not None:
            sample.added.deltas += deltas
            sample.added.logprobs += logprobs

    def _keep_logprobs(self, sample: _Sample, logprobs: Sequence[TokenLogprob] | None) -> None:
        if self._keeps and logprobs is not None:
            sample.logprobs = sample.logprobs or _Logprobs()
            sample.logprobs.entries.extend(logprobs)

    def _visible(self, event: TokensEvent) -> tuple[int, ...]:
        """The token that ends an output is no part of its text (it stays among its token ids)."""
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
            self._tell(sample, sample.answer, sample.answer.finish(text))
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
        """Each is named once, however often a growing output is looked at."""
        logprobs.named.extend(self._named(entry) for entry in logprobs.entries[len(logprobs.named) :])
        return list(logprobs.named)

    def _named(self, entry: TokenLogprob) -> dict[int, Logprob]:
        named = {entry.token_id: Logprob(entry.logprob, None, self._name(entry.token_id))}
        for rank, (token_id, value) in enumerate(entry.top, 1):
            named[token_id] = Logprob(value, rank, self._name(token_id))
        return named

    def _name(self, token_id: int) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode([token_id], skip_special_tokens=False)
