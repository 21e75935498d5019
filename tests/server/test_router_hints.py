"""Hints of routers in headers: its targets, whose share it is, its lane."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from breadth import first_of

from inflight.core.types.request import SLO, Request
from inflight.frontend.prompts import PromptEncoder
from inflight.records.schema import of_kind, read_records
from inflight.server.common.bodies import UnknownFields
from inflight.server.common.fields import CompletionSettings, Slo
from inflight.server.common.prepared import PreparedCompletion, Prompt, packed
from inflight.server.engine_description import ServedLane
from inflight.server.errors import ApiError
from inflight.server.openai.completions import COMPLETION
from inflight.server.router_hints import NO_HINTS, RouterHints, hints_of
from inflight.server.tenants import ANYONE, Tenant
from inflight.server.translating import RequestTranslator

from .conftest import Server

HINTS = RouterHints(ttft=0.2, tpot=0.03, fairness_id="team", objective="rerank")


def test_both_spellings_are_read_and_the_later_one_goes_first() -> None:
    old = [(b"x-slo-ttft-ms", b"200"), (b"x-slo-tpot-ms", b" 30.5 ")]
    assert hints_of(old) == RouterHints(ttft=0.2, tpot=0.0305)
    assert hints_of([*old, (b"x-llm-d-slo-ttft-ms", b"100")]).ttft == 0.1
    named = [(b"x-gateway-inference-fairness-id", b"team"), (b"x-gateway-inference-objective", b"chat")]
    assert hints_of(named) == RouterHints(fairness_id="team", objective="chat")
    assert hints_of([*named, (b"x-llm-d-inference-fairness-id", b"other")]).fairness_id == "other"
    assert hints_of([(b"content-type", b"application/json")]) is NO_HINTS


def test_a_session_is_the_headers_before_the_bodys() -> None:
    hints = hints_of([(b"x-session-id", b" s1 ")])
    assert hints == RouterHints(session="s1")
    assert placed(hints, session_id="s2", prompt_cache_key="k")[0].session == "s1"
    assert placed(NO_HINTS, session_id="s2", prompt_cache_key="k")[0].session == "s2"
    assert placed(NO_HINTS, prompt_cache_key="k")[0].session == "k"
    assert placed(NO_HINTS)[0].session == ""


def test_a_program_is_the_headers_before_the_bodys_and_a_parent_names_it() -> None:
    hints = hints_of([(b"x-dynamo-session-id", b"child"), (b"x-dynamo-parent-session-id", b"root")])
    assert hints == RouterHints(session="child", program="root")
    agent = hints_of([(b"x-claude-code-session-id", b"run"), (b"x-claude-code-agent-id", b"reader")])
    assert agent == RouterHints(session="reader", program="run")
    assert hints_of([(b"x-program-id", b"p"), (b"x-parent-session-id", b"q")]).program == "p"
    assert placed(hints, program_id="other", session_id="s")[0].of_program == "root"
    assert placed(NO_HINTS, program_id="p", session_id="s")[0].of_program == "p"
    assert placed(NO_HINTS, session_id="s")[0].of_program == "s"
    assert placed(NO_HINTS)[0].of_program == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent_hint", {"session_id": "child", "parent_session_id": "root", "cache_control": {"ttl": 300}}),
        ("nvext", {"agent_context": {"session_id": "child", "program_id": "root"}, "agent_hints": {"priority": 5}}),
        ("vllm_xargs", {"agentic_context": {"session_id": "child", "program_id": "root"}, "anything": 1}),
    ],
)
def test_other_servers_names_of_programs_are_read(field: str, value: dict[str, Any]) -> None:
    body = COMPLETION.decode(msgspec.json.encode({"prompt": "x", field: value}))
    assert (body.session_id, body.program_id) == ("child", "root")
    own = COMPLETION.decode(msgspec.json.encode({"prompt": "x", field: value, "program_id": "own"}), UnknownFields())
    assert own.program_id == "own"
    inside = {"nvext": "agent_context", "vllm_xargs": "agentic_context"}.get(field)
    with pytest.raises(ApiError, match="session_id is 7; give text"):
        COMPLETION.decode(
            msgspec.json.encode({"prompt": "x", field: {inside: {"session_id": 7}} if inside else {"session_id": 7}})
        )


@pytest.mark.parametrize("value", [None, {}, {"agent_context": None, "agentic_context": None}])
@pytest.mark.parametrize("field", ["nvext", "vllm_xargs"])
def test_an_agents_context_may_be_null(field: str, value: dict[str, None] | None) -> None:
    body = COMPLETION.decode(msgspec.json.encode({"prompt": "x", field: value}))
    assert (body.session_id, body.program_id) == (None, None)


@pytest.mark.parametrize("field", ["agent_hint", "nvext", "vllm_xargs"])
def test_an_agents_context_may_be_json_text_and_other_forms_say_nothing(field: str) -> None:
    inside = {"nvext": "agent_context", "vllm_xargs": "agentic_context"}.get(field)

    def read(hint: Any) -> tuple[str | None, str | None]:
        body = COMPLETION.decode(msgspec.json.encode({"prompt": "x", field: {inside: hint} if inside else hint}))
        return body.session_id, body.program_id

    assert read('{"session_id": "child", "parent_session_id": "root", "more": [1]}') == ("child", "root")
    for hint in ("fast", "", "7", "[]", '{"session_id": 7}', "{", "[" * 9000, 3, 0.5, True, ["a", {"b": 1}]):
        assert read(hint) == (None, None), hint
    for value in ("fast", 1, True, [{"agent_context": 1}]):
        body = COMPLETION.decode(msgspec.json.encode({"prompt": "x", field: value}))
        assert (body.session_id, body.program_id) == (None, None), value


@pytest.mark.parametrize("value", [b"soon", b"", b"0", b"-5", b"nan", b"inf", b"1e16", b"9" * 5000])
def test_a_target_that_is_none_is_reported_by_its_header(value: bytes) -> None:
    with pytest.raises(ApiError, match=r"The header x-slo-tpot-ms is '.*'; give milliseconds") as caught:
        hints_of([(b"x-slo-tpot-ms", value)])
    assert (caught.value.status, caught.value.param) == (400, "x-slo-tpot-ms") and len(caught.value.message) < 200
    with pytest.raises(ApiError, match="its 600 characters are more than 512"):
        hints_of([(b"x-gateway-inference-fairness-id", b"x" * 600)])


def placed(hints: RouterHints, tenant: Tenant = ANYONE, **fields: Any) -> tuple[Request, str]:
    """The request of a body with these fields, and the tier that its answer names."""
    translator = RequestTranslator(
        encoder=PromptEncoder(None, None, 0),
        models=(),
        now=lambda: 0.0,
        lanes=tuple(map(ServedLane, ("interactive", "batch", "rerank"))),
    )
    prepared = PreparedCompletion(CompletionSettings(**fields), (Prompt(packed([1, 2])),))
    call = translator.call(prepared, tenant, hints=hints)
    return call.requests[0], call.tier


def test_a_router_says_what_the_body_does_not() -> None:
    request, tier = placed(HINTS, user="me")
    assert (request.slo, request.tenant, request.lane, tier) == (SLO(0.2, tpot=0.03), "team", "rerank", "default")
    request, _ = placed(HINTS, slo=Slo(ttft_ms=50), service_tier="default")
    assert (request.slo, request.lane) == (SLO(0.05, tpot=0.03), "interactive")
    assert placed(HINTS, service_tier="flex")[0].lane == "batch"
    assert placed(HINTS, service_tier="auto")[0].lane == "rerank"
    assert placed(NO_HINTS, user="me")[0].tenant == "me"


def test_an_objective_that_is_no_lane_changes_nothing() -> None:
    assert placed(RouterHints(objective="premium"))[0].lane == placed(NO_HINTS)[0].lane == "interactive"
    request, tier = placed(RouterHints(objective="batch"))
    assert (request.lane, tier) == ("batch", "flex")


def test_clients_with_keys_choose_no_share() -> None:
    assert placed(HINTS, Tenant(name="acme"), user="me")[0].tenant == "acme"


@pytest.mark.parametrize("processes", first_of([0, 1]))
def test_headers_reach_the_engine(start: Callable[..., Server], tmp_path: Path, processes: int) -> None:
    config, record = tmp_path / "lanes.toml", tmp_path / "run.jsonl"
    config.write_text("[lanes.rerank]\nweight = 2\n", encoding="utf-8")
    options = ("--config", str(config), "--record", str(record), "--api-processes", str(processes))
    server = start(*options)
    said = {"x-slo-ttft-ms": "90000", "x-slo-tpot-ms": "4000", "X-Gateway-Inference-Fairness-Id": "team"}
    said["x-gateway-inference-objective"] = "rerank"
    long = {"messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 2}
    for path, body in (("/v1/completions", {"prompt": "Hi", "max_tokens": 2}), ("/v1/chat/completions", long)):
        assert server.post(path, body, headers=said).status_code == 200
    refused = server.post("/v1/completions", {"prompt": "Hi"}, headers={"x-slo-ttft-ms": "soon"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "x-slo-ttft-ms"
    assert server.stop() == 0
    requests = [one.request for one in of_kind(list(read_records(record)), "request")]
    assert [(one.tenant, one.lane, one.slo) for one in requests] == [("team", "rerank", SLO(90.0, tpot=4.0))] * 2
