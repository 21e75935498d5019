"""Counts of requests by lane, and latencies by priority.

Latencies are those of `inflight.metrics.definitions`: TTFT and E2E count from the request's intended send time. The
engine's thread fills them; a token costs two dictionary look-ups and a bisection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from inflight.core.types.events import Event, FinishedEvent, TokensEvent, finish_reason
from inflight.core.types.request import Request
from inflight.core.types.timings import QUEUE_REASONS
from inflight.metrics.definitions import tpot, ttft
from inflight.server.metrics.families import labelled
from inflight.server.metrics.histogram import (
    SECONDS,
    VLLM_FIRST_TOKEN,
    VLLM_NEXT_TOKEN,
    VLLM_REQUEST,
    VLLM_SAMPLES,
    Histogram,
    lengths,
)
from inflight.server.metrics.programs import JCT_SECONDS, ProgramTimes

FINISH_REASONS = ("stop", "length", "abort", "error")
_TIMES = (
    ("ttft", "inflight_time_to_first_token_seconds", "Intended send time to first token."),
    (
        "itl",
        "inflight_inter_token_latency_seconds",
        "Gap between successive events of a sample; one may bring several tokens.",
    ),
    (
        "tpot",
        "inflight_time_per_output_token_seconds",
        "(Last token - first) / tokens behind the first, of each sample.",
    ),
    ("e2e", "inflight_e2e_latency_seconds", "Intended send time to the end, of requests that ended by stop or length."),
    ("queue", "inflight_queue_time_seconds", "Time before the first chunk, of each ended request."),
    ("prefill", "inflight_prefill_time_seconds", "First chunk to first token, of requests with a token."),
    ("decode", "inflight_decode_time_seconds", "First token to last, without preemption, of requests with a token."),
)
_BY_PRIORITY = (
    ("ttft", "inflight_priority_time_to_first_token_seconds", "Intended send time to first token."),
    ("queue", "inflight_priority_queue_time_seconds", "Time before the first chunk, of each ended request."),
    (
        "e2e",
        "inflight_priority_e2e_latency_seconds",
        "Intended send time to the end, of requests that ended by stop or length.",
    ),
)
MAX_PRIORITIES = 16  # that have histograms of their own; clients choose the numbers
OTHER_PRIORITIES = "other"

_JCT = ("jct", "inflight_program_completion_seconds", "First call of a program to its last token, once it has rested.")
_LENGTHS = (
    ("prompt", "inflight_request_prompt_tokens", "Prompt tokens of accepted requests."),
    ("output", "inflight_request_output_tokens", "Output tokens of each sample that ended by stop or length."),
)


class LaneRequests:
    """Times in seconds. Every attribute but the counters is a histogram.

    queue, prefill, decode: the account of each ended request. computed_prompt: prompt tokens that were not cached.
    longest: output tokens of the longest sample; output: of each sample.
    """

    def __init__(self, max_model_len: int):
        sizes = lengths(max_model_len)
        self.accepted = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = self.output_tokens = 0
        self.queued_by = dict.fromkeys(QUEUE_REASONS, 0.0)
        self.ttft = Histogram(SECONDS, VLLM_FIRST_TOKEN)
        self.itl = Histogram(SECONDS, VLLM_NEXT_TOKEN)
        self.tpot = Histogram(SECONDS, VLLM_NEXT_TOKEN)
        self.e2e = Histogram(SECONDS, VLLM_REQUEST)
        self.queue = Histogram(SECONDS, VLLM_REQUEST)
        self.prefill = Histogram(SECONDS, VLLM_REQUEST)
        self.decode = Histogram(SECONDS, VLLM_REQUEST)
        self.inference = Histogram(VLLM_REQUEST)
        self.prompt = Histogram(sizes)
        self.output = Histogram(sizes)
        self.longest = Histogram(sizes)
        self.computed_prompt = Histogram(sizes)
        self.max_tokens = Histogram(sizes)
        self.samples = Histogram(VLLM_SAMPLES)
        self.jct = Histogram(JCT_SECONDS)


class _Sample:
    __slots__ = ("first", "last", "tokens", "with_first")

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.tokens = self.with_first = 0


class PriorityRequests:
    """Latencies of one priority's requests, in seconds."""

    def __init__(self) -> None:
        self.ttft = Histogram(SECONDS)
        self.queue = Histogram(SECONDS)
        self.e2e = Histogram(SECONDS)


class _Alive:
    __slots__ = ("answered", "arrival", "lane", "priority", "program", "prompt_tokens", "samples")

    def __init__(
        self, request: Request, lane: LaneRequests, priority: PriorityRequests, program: tuple[str, str] | None
    ):
        self.program = program
        self.arrival = request.arrival
        self.lane, self.priority = lane, priority
        self.prompt_tokens = len(request.prompt_token_ids)
        self.samples = [_Sample() for _ in range(request.params.n)]
        self.answered = False


class RequestCounts:
    def __init__(self, lanes: Iterable[str], max_model_len: int):
        self._max_model_len = max_model_len
        self.lanes = {name: LaneRequests(max_model_len) for name in lanes}
        self.priorities: dict[str, PriorityRequests] = {}
        self._alive: dict[str, _Alive] = {}
        self._programs = ProgramTimes()

    # -- filled by the engine -----------------------------------------------------------------------------------

    def added(self, request: Request) -> None:
        lane = self.lanes.get(request.lane)
        if lane is None:
            lane = self.lanes[request.lane] = LaneRequests(self._max_model_len)
        lane.accepted += 1
        lane.prompt.observe(len(request.prompt_token_ids))
        lane.samples.observe(request.params.n)
        if request.params.max_tokens is not None:
            lane.max_tokens.observe(request.params.max_tokens)
        priority, program = self._of_priority(str(request.priority)), self._programs.added(request, lane.jct)
        self._alive[request.request_id] = _Alive(request, lane, priority, program)

    def _of_priority(self, name: str) -> PriorityRequests:
        if name not in self.priorities and len(self.priorities) >= MAX_PRIORITIES:
            name = OTHER_PRIORITIES
        return self.priorities.setdefault(name, PriorityRequests())

    def events(self, events: list[Event], now: float) -> None:
        for event in events:
            alive = self._alive.get(event.request_id)
            if alive is None:  # it came before counting began
                continue
            if isinstance(event, TokensEvent):
                self._tokens(alive, event, now)
            elif isinstance(event, FinishedEvent):
                del self._alive[event.request_id]
                self._finished(alive, event)
                self._programs.ended(alive.program, now)

    @staticmethod
    def _tokens(alive: _Alive, event: TokensEvent, now: float) -> None:
        lane, sample, count = alive.lane, alive.samples[event.sample_index], len(event.token_ids)
        if sample.tokens:
            lane.itl.observe(now - sample.last)
        else:
            sample.first = now
            if not alive.answered:
                alive.answered = True
                lane.prompt_tokens += alive.prompt_tokens
                first = ttft(alive.arrival, now)
                lane.ttft.observe(first)
                alive.priority.ttft.observe(first)
        sample.last = now
        sample.tokens += count
        sample.with_first += count if now == sample.first else 0
        lane.output_tokens += count
        if event.finish is not None:
            lane.output.observe(sample.tokens)
            per_token = tpot(sample.first, now, sample.tokens, sample.with_first)
            if per_token is not None:
                lane.tpot.observe(per_token)

    @staticmethod
    def _finished(alive: _Alive, event: FinishedEvent) -> None:
        lane, timings, reason = alive.lane, event.timings, finish_reason(event.finishes)
        lane.finished[reason] += 1
        if not alive.answered and reason == "length":  # no token was wanted, and the prompt was computed all the same
            lane.prompt_tokens += alive.prompt_tokens
        lane.queue.observe(timings.queue_ms / 1e3)
        alive.priority.queue.observe(timings.queue_ms / 1e3)
        for cause, waited_ms in timings.queued_by.items():
            lane.queued_by[cause] += waited_ms / 1e3
        if not alive.answered:
            return
        computed = alive.prompt_tokens - timings.cached_tokens
        lane.cached_tokens += timings.cached_tokens
        lane.computed_tokens += computed
        lane.computed_prompt.observe(computed)
        lane.longest.observe(max(sample.tokens for sample in alive.samples))
        lane.prefill.observe(timings.prefill_ms / 1e3)
        lane.decode.observe(timings.decode_ms / 1e3)
        lane.inference.observe((timings.prefill_ms + timings.decode_ms + timings.preempted_ms) / 1e3)
        if reason in ("stop", "length"):
            lane.e2e.observe(timings.total_ms / 1e3)
            alive.priority.e2e.observe(timings.total_ms / 1e3)

    # -- read for the page --------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        lanes = sorted(self.lanes.copy().items())
        for attribute, name, about in (
            ("accepted", "inflight_requests_accepted", "Requests taken in."),
            ("prompt_tokens", "inflight_prompt_tokens", "Prompt tokens, counted when the first token comes."),
            ("cached_tokens", "inflight_cached_prompt_tokens", "Prompt tokens found cached, counted at the end."),
            ("output_tokens", "inflight_output_tokens", "Tokens given out."),
        ):
            values = {(lane,): getattr(counts, attribute) for lane, counts in lanes}
            yield labelled(CounterMetricFamily, name, about, ["lane"], values)
        yield self._by_reason("finished", "inflight_requests_finished", "Requests that ended, by how.")
        yield self._by_reason("queued_by", "inflight_queue_seconds", "Time waited, by what for; ended requests.")
        sizes = lengths(self._max_model_len)
        times = [(*one, SECONDS) for one in _TIMES]
        for attribute, name, about, bounds in (*times, (*_JCT, JCT_SECONDS), *((*one, sizes) for one in _LENGTHS)):
            histograms = HistogramMetricFamily(name, about, labels=["lane"])
            for lane, counts in lanes:
                histogram = getattr(counts, attribute)
                histograms.add_metric([lane], histogram.buckets(bounds), histogram.sum())
            yield histograms
        yield from self._by_priority()

    def _by_priority(self) -> Iterator[Metric]:
        priorities = sorted(self.priorities.copy().items())
        for attribute, name, about in _BY_PRIORITY:
            histograms = HistogramMetricFamily(name, about, labels=["priority"])
            for priority, counts in priorities:
                histogram = getattr(counts, attribute)
                histograms.add_metric([priority], histogram.buckets(SECONDS), histogram.sum())
            yield histograms

    def _by_reason(self, attribute: str, name: str, about: str) -> Metric:
        values = {
            (lane, reason): value
            for lane, counts in sorted(self.lanes.copy().items())
            for reason, value in getattr(counts, attribute).items()
        }
        return labelled(CounterMetricFamily, name, about, ["lane", "reason"], values)
