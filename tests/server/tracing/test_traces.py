"""Spans of real servers, as a collector gets them; and a collector that is away."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from inflight.config.setting import SettingsError
from inflight.server.settings import ServerSettings
from inflight.server.tracing.opening import spans_url

from ..conftest import Server
from .collector import Collector, Spanned

QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))
HI = [{"role": "user", "content": "What is a lane?"}]
SERVER, INTERNAL = 2, 1
STAGES = ("receive_body", "wait_for_model", "preprocess")
ACCOUNT = (
    *("gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.latency.time_in_model_decode"),
    *("inflight.latency.time_preempted", "inflight.latency.time_other"),
)
Start = Callable[..., Server]


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture(scope="module")
def traced() -> Iterator[tuple[Server, Collector]]:
    """Shared by all tests that change nothing."""
    collector = Collector()
    running = Server("--otlp-traces-endpoint", f"{collector.url}/v1/traces", env=QUICK).ready()
    yield running, collector
    assert running.stop() == 0, "".join(running.log)
    collector.close()


def span_of(collector: Collector, answer: httpx.Response) -> Spanned:
    """The request's own span, once all that belongs to it has come: it is sent last."""
    wanted = [answer.headers["x-request-id"]]

    def found() -> list[Spanned]:
        return [one for one in collector.spans if one.attributes.get("http.response.header.x-request-id") == wanted]

    assert collector.has(found)
    return found()[0]


def check_times(collector: Collector, span: Spanned) -> dict[str, Spanned]:
    """Stages follow each other, and none lies outside. The spans within the engine's."""
    within = collector.within(span)
    assert set(within) == {*STAGES, "engine"}
    stages = [within[name] for name in STAGES]
    assert [one.begin for one in stages] == pytest.approx([span.begin, *(one.end for one in stages[:-1])], abs=1e-6)
    engine = within["engine"]
    assert stages[0].end - 1e-3 <= engine.begin <= stages[-1].end + 1e-3 and engine.end <= span.end + 1e-3
    parts = collector.within(engine)
    of_engine = [parts[name] for name in ("queue", "prefill", "decode") if name in parts]
    assert of_engine[0].begin == pytest.approx(engine.begin, abs=1e-5)
    assert of_engine[-1].end == pytest.approx(engine.end, abs=1e-5)
    for one, following in itertools.pairwise(of_engine):
        assert one.end == pytest.approx(following.begin, abs=1e-5)
    attributes = engine.attributes
    total = attributes["gen_ai.latency.e2e"]
    assert isinstance(total, float) and sum(attributes[name] for name in ACCOUNT) == pytest.approx(total, abs=1e-5)  # type: ignore[misc]
    assert engine.seconds == pytest.approx(total, abs=1e-4)
    return parts


def test_a_chat_is_a_span_with_its_stages_within(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    before = time.time()
    body = {"messages": HI, "max_tokens": 12, "temperature": 0.5, "ignore_eos": True, "slo": {"ttft_ms": 90_000}}
    answer = server.post("/v1/chat/completions", body)
    after, usage = time.time(), answer.json()["usage"]
    span = span_of(collector, answer)
    assert (span.name, span.kind, span.parent, span.failed) == ("chat built-in", SERVER, "", False)
    assert before - 0.05 <= span.begin < span.end <= after + 0.05
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "inflight",
        "gen_ai.request.model": "built-in",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 12,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.completion_tokens": 12,
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "inflight.lane": "interactive",
        "inflight.slo.ttft": 90.0,
    }
    assert expected.items() <= {name: value for name, value in span.attributes.items() if name in expected}.items()
    assert span.resource["service.name"] == "inflight" and span.resource["service.version"]
    parts = check_times(collector, span)
    assert parts["prefill"].seconds > 0 and parts["decode"].seconds > 0
    assert all(one.kind == INTERNAL and one.trace == span.trace for one in parts.values())
    first = span.attributes["gen_ai.latency.time_to_first_token"]
    assert first == pytest.approx(parts["decode"].begin - collector.within(span)["engine"].begin, abs=1e-4)
    shown = str([one.attributes for one in collector.spans])
    assert "What is a lane" not in shown, "no text is in any span"


def test_a_stream_lasts_until_its_last_frame(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    body = {"prompt": "Once", "max_tokens": 30, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
        assert sum(1 for line in stream.iter_lines() if line) >= 2  # at least its tokens and its end
    span = span_of(collector, stream)
    assert span.name == "text_completion built-in" and span.attributes["inflight.stream"] is True
    assert span.attributes["gen_ai.usage.output_tokens"] == 30
    check_times(collector, span)


def test_each_prompt_of_a_call_has_a_span(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    answer = server.post("/v1/completions", {"prompt": ["Once", "A block", "A lane"], "max_tokens": 3, "n": 2})
    span = span_of(collector, answer)
    engine = [one for one in collector.spans if one.parent == span.id and one.name == "engine"]
    assert sorted(one.attributes["inflight.prompt.index"] for one in engine) == [0, 1, 2]  # type: ignore[type-var]
    assert span.attributes["gen_ai.request.choice.count"] == 2 and span.attributes["inflight.prompts"] == 3
    longest = max(one.attributes["gen_ai.latency.e2e"] for one in engine)  # type: ignore[type-var]
    assert span.attributes["gen_ai.latency.e2e"] == longest


def test_who_asks_is_the_parent_and_decides(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    ask: dict[str, Any] = {"prompt": "Once", "max_tokens": 2}
    said = {"traceparent": SAMPLED, "tracestate": "vendor=1"}
    unsampled = server.post("/v1/completions", ask, headers={"traceparent": UNSAMPLED})
    span = span_of(collector, server.post("/v1/completions", ask, headers=said))
    assert (span.trace, span.parent, span.state) == (TRACE, PARENT, "vendor=1")
    assert all(one.trace == TRACE for one in collector.within(span).values())
    broken = span_of(collector, server.post("/v1/completions", ask, headers={"traceparent": "00-nonsense"}))
    assert broken.parent == "" and broken.trace != TRACE
    ids = [one.attributes.get("http.response.header.x-request-id") for one in collector.spans]
    assert [unsampled.headers["x-request-id"]] not in ids
    assert "traceparent" not in unsampled.headers


def test_what_is_refused_has_a_span_as_far_as_it_came(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    wrong = server.post("/v1/chat/completions", {"messages": HI, "model": "made-up"})
    span = span_of(collector, wrong)
    assert (span.name, span.failed) == ("chat", False), "a name that a client made up is none of ours"
    assert span.attributes["error.type"] == "model_not_found" and span.attributes["http.response.status_code"] == 404
    assert set(collector.within(span)) == {"receive_body", "wait_for_model"}
    refused = server.post("/v1/completions", {"prompt": [7] * 1024, "max_tokens": 9})
    span = span_of(collector, refused)
    assert span.attributes["error.type"] == "context_length_exceeded" and span.name == "text_completion built-in"
    assert "gen_ai.usage.output_tokens" not in span.attributes


def test_a_number_that_the_protocol_has_no_room_for_is_left_out(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    for seed, expected in ((2**64 - 1, None), (-(2**63), -(2**63))):
        answer = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "seed": seed})
        assert span_of(collector, answer).attributes.get("gen_ai.request.seed") == expected


def test_nothing_else_is_traced(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    for path in ("/health", "/v1/models", "/metrics"):
        server.get(path)
    server.post("/tokenize", {"prompt": "Once"})
    span_of(collector, server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}))
    assert {one.attributes.get("http.route") for one in collector.spans if not one.parent} <= {
        "/v1/completions",
        "/v1/chat/completions",
    }


@pytest.mark.wide
def test_in_processes_of_its_own(start: Start, collector: Collector) -> None:
    server = start("--api-processes", "2", "--otlp-traces-endpoint", collector.url, env=QUICK)
    answer = server.post("/v1/chat/completions", {"messages": HI, "max_tokens": 5}, headers={"traceparent": SAMPLED})
    span = span_of(collector, answer)
    assert (span.trace, span.parent) == (TRACE, PARENT)
    check_times(collector, span)
    assert span.resource["process.pid"] != server.process.pid and set(collector.paths) == {"/v1/traces"}
    last = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
    assert server.stop() == 0, "".join(server.log)
    assert span_of(collector, last), "it is sent before the end"


@pytest.mark.wide
def test_with_several_models_the_wait_for_one_is_a_stage(
    start: Start, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("models") / "models.toml"
    file.write_text("memory = 1\n[models.a]\n", encoding="utf-8")
    server = start("--models", str(file), "--otlp-traces-endpoint", collector.url, env=QUICK)
    answer = server.post("/v1/completions", {"model": "a", "prompt": "Once", "max_tokens": 4, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    span = span_of(collector, answer)
    check_times(collector, span)
    assert span.name == "text_completion a" and collector.within(span)["wait_for_model"].seconds > 0.05


@pytest.mark.wide
def test_a_collector_that_is_away_harms_no_request_and_is_logged_once(start: Start, collector: Collector) -> None:
    collector.status = 503
    server = start("--otlp-traces-endpoint", collector.url, env=QUICK)
    ask: dict[str, Any] = {"prompt": "Once", "max_tokens": 2}
    slowest = 0.0
    for _ in range(30):
        began = time.monotonic()
        assert server.post("/v1/completions", ask).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.1)
    assert slowest < 5

    def said(words: str) -> int:
        return sum(words in line for line in server.log)

    assert server.settled(lambda: said("Spans do not reach") == 1)
    assert not said("Traceback") and not said("opentelemetry.")
    collector.status = 200
    assert server.settled(lambda: bool(server.post("/v1/completions", ask)) and said("again;") == 1)
    assert said("Spans do not reach") == 1 and collector.spans


@pytest.mark.wide
def test_the_end_does_not_wait_for_a_collector_that_is_away(start: Start) -> None:
    server = start("--otlp-traces-endpoint", "http://user:secret@127.0.0.1:9/v1/traces")
    assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 2}).status_code == 200
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 10
    assert any("Spans do not reach" in line for line in server.log)
    assert not any("secret" in line for line in server.log)


def test_without_the_extra_it_is_said_what_to_install(start: Start) -> None:
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None; from inflight.cli import main; main()"
    options = ("--otlp-traces-endpoint", "http://localhost:4318")
    server = start(*options, program=("-c", hidden), ready=False)
    assert server.process.wait(60) != 0
    assert server.settled(lambda: any("pip install 'inflight-llm[otel]'" in line for line in server.log)), server.log
    assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize(
    "endpoint", ["", "localhost:4318", "grpc://localhost:4317", "http://localhost:4317", "ftp://x"]
)
def test_an_endpoint_is_a_url_over_http(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="give the URL at which the collector takes OTLP over HTTP"):
        ServerSettings(otlp_traces_endpoint=endpoint)


def test_a_collectors_own_address_has_the_protocols_path() -> None:
    for endpoint in ("http://c:4318", "http://c:4318/"):
        assert spans_url(endpoint) == "http://c:4318/v1/traces"
    assert spans_url("https://c/otlp/traces") == "https://c/otlp/traces"
