"""Names and attributes of a request's spans, by OpenTelemetry's conventions for generative AI and HTTP.

Latencies have vLLM's names (`gen_ai.latency.…`). No attribute holds text of prompts or answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inflight.core.types.request import Request
from inflight.core.types.timings import Timings
from inflight.frontend.outputs import OutputCollector
from inflight.server.common.prepared import Call, EndpointName
from inflight.server.errors import ApiError
from inflight.server.generating import Generation
from inflight.server.registry import ENDPOINTS
from inflight.server.tracing.request_trace import RequestTrace

Attribute = str | bool | int | float | Sequence[str]
_LARGEST = 2**63 - 1
MAX_PROMPTS = 16  # of a call, that have spans of their own
_OPERATIONS: dict[EndpointName, str] = {  # others are called by their endpoint's name
    "completion": "text_completion",
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "embeddings": "embeddings",
    "embed": "embeddings",
    "ollama_chat": "chat",
    "ollama_generate": "text_completion",
    "ollama_embed": "embeddings",
    "ollama_embeddings": "embeddings",
}
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "max_tokens", "seed")


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """A span. begin, end: nanoseconds since 1970. parts: spans within it."""

    name: str
    begin: int
    end: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    parts: tuple[SpanFacts, ...] = ()


def span_name(trace: RequestTrace) -> str:
    """Return the name of a request's span. It has no model that is unknown here: names must be few."""
    operation = _OPERATIONS.get(trace.endpoint, trace.endpoint)
    return operation if trace.call is None else f"{operation} {trace.call.model}"


def request_span(trace: RequestTrace, end: int, status: int, request_id: str, error: ApiError | None) -> SpanFacts:
    """Return a request's span. status: of HTTP. error: why it was not served, or not to its end."""
    path = ENDPOINTS[trace.endpoint].path
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": _OPERATIONS.get(trace.endpoint, trace.endpoint),
        "gen_ai.provider.name": "inflight",
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "http.response.status_code": status,
        "http.response.header.x-request-id": (request_id,),
    }
    if error is not None:
        attributes["error.type"] = error.code or error.type
    parts = [SpanFacts(name, begin, ended) for name, begin, ended in trace.stages]
    if trace.call is not None:
        attributes |= _asked(trace.call)
        if trace.generation is not None:
            attributes |= _answered(trace.call, trace.generation)
            parts += _engine_spans(trace, trace.generation)
    return SpanFacts(span_name(trace), trace.begin, end, attributes, tuple(parts))


def _asked(call: Call) -> dict[str, Attribute]:
    request = call.requests[0]
    sampling = {} if request.pooling is not None else {name: getattr(request.params, name) for name in _SAMPLING}
    attributes: dict[str, Attribute | None] = {
        "gen_ai.request.model": call.model,
        "gen_ai.request.id": call.call_id,
        "gen_ai.request.choice.count": call.n if call.n > 1 else None,
        **{f"gen_ai.request.{name}": value for name, value in sampling.items()},
        "inflight.stream": call.stream,
        "inflight.prompts": len(call.requests),
        "inflight.tenant": request.tenant or None,
        "inflight.lane": request.lane,
        "inflight.priority": request.priority,
        "inflight.slo.ttft": request.slo.ttft,
        "inflight.slo.itl": request.slo.itl,
        "inflight.slo.tpot": request.slo.tpot,
    }
    return _without_none(attributes)


def _answered(call: Call, generation: Generation) -> dict[str, Attribute]:
    """Return the attributes of an answer; of several prompts the longest times, and the earliest token."""
    collectors = generation.response.collectors
    prompt, output = sum(len(one.prompt_token_ids) for one in call.requests), generation.response.output_tokens
    reasons = [finish.reason for one in collectors for finish in one.finishes if finish is not None]
    timings = [one.timings for one in collectors if one.timings is not None]
    attributes: dict[str, Attribute] = {
        "gen_ai.response.model": call.model,
        "gen_ai.response.id": call.call_id,
        "gen_ai.response.finish_reasons": reasons or ("abort",),
        **dict.fromkeys(("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"), prompt),
        **dict.fromkeys(("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"), output),
    }
    if timings:
        attributes["gen_ai.usage.cache_read.input_tokens"] = sum(one.cached_tokens for one in timings)
        for one in map(_latencies, timings):
            for name, value in one.items():
                first = name.endswith("first_token")
                attributes[name] = (min if first else max)(value, attributes.get(name, value))  # type: ignore[type-var]
    return attributes


def _engine_spans(trace: RequestTrace, generation: Generation) -> list[SpanFacts]:
    """Return the spans of the prompts that the engine has finished; a client that leaves gets none for the others."""
    assert trace.call is not None, "of a generation"
    pairs = list(zip(trace.call.requests, generation.response.collectors, strict=True))[:MAX_PROMPTS]
    return [
        _engine_span(trace, request, collector, collector.timings, index)
        for index, (request, collector) in enumerate(pairs)
        if collector.timings is not None
    ]


def _engine_span(
    trace: RequestTrace, request: Request, collector: OutputCollector, timings: Timings, index: int
) -> SpanFacts:
    def after(milliseconds: float) -> int:
        return trace.at(request.arrival + milliseconds / 1e3)

    total = timings.total_ms
    started = total if timings.started_ms is None else timings.started_ms
    first = total if timings.ttft_ms is None else timings.ttft_ms
    bounds = [("queue", 0.0, started), ("prefill", started, first), ("decode", first, total)]
    attributes: dict[str, Attribute] = {
        **({"inflight.prompt.index": index} if trace.call is not None and len(trace.call.requests) > 1 else {}),
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.cache_read.input_tokens": timings.cached_tokens,
        "gen_ai.usage.output_tokens": collector.output_tokens,
        "inflight.recomputed_tokens": timings.recomputed_tokens,
        "inflight.swapped_blocks": timings.swapped_blocks,
        **_latencies(timings),
    }
    parts = tuple(SpanFacts(name, after(begin), after(end)) for name, begin, end in bounds if end > begin)
    return SpanFacts("engine", after(0.0), after(total), attributes, parts)


def _latencies(timings: Timings) -> dict[str, float]:
    """Return seconds. Queue, prefill, decode, preempted and other sum to e2e; reasons and lanes, each, to the queue."""
    milliseconds = {
        "gen_ai.latency.time_in_queue": timings.queue_ms,
        "gen_ai.latency.time_in_model_prefill": timings.prefill_ms,
        "gen_ai.latency.time_in_model_decode": timings.decode_ms,
        "gen_ai.latency.time_in_model_inference": timings.prefill_ms + timings.decode_ms,
        "gen_ai.latency.e2e": timings.total_ms,
        "inflight.latency.time_preempted": timings.preempted_ms,
        "inflight.latency.time_other": timings.other_ms,
        **{f"inflight.latency.queued_by.{reason}": spent for reason, spent in timings.queued_by.items() if spent},
        **{f"inflight.latency.queued_behind.{lane}": spent for lane, spent in timings.queued_behind.items() if spent},
    }
    if timings.ttft_ms is not None:
        milliseconds["gen_ai.latency.time_to_first_token"] = timings.ttft_ms
    return {name: value / 1e3 for name, value in milliseconds.items()}


def _without_none(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    """Leave out None and too large integers: a seed of 64 bits would lose all spans that are sent with it."""
    return {
        name: value
        for name, value in attributes.items()
        if value is not None and not (isinstance(value, int) and value > _LARGEST)
    }
