"""The fields that a server accepts are found by probing, whether its refusals name the field or not."""

from __future__ import annotations

import pytest

from inflight.bench.client_types import BenchError, Target
from inflight.bench.probe_client import ProbeClient
from inflight.bench.server_capabilities import OPTIONAL, Question, ServerCapabilities, probe_capabilities

from .scripted import ScriptedServer

EVERYTHING = frozenset(OPTIONAL)


def learnt(server: ScriptedServer, endpoint="completions", **extra) -> ServerCapabilities:
    target = Target(server.url, endpoint)
    return probe_capabilities(ProbeClient(target), target, Question("m", EVERYTHING, extra))


def test_a_server_that_takes_everything_keeps_every_field():
    with ScriptedServer() as server:
        capabilities = learnt(server)
    assert capabilities == ServerCapabilities(EVERYTHING)
    assert capabilities.forces_length == "output_tokens"
    assert len(server.bodies) == 1


def test_refused_fields_are_dropped_by_name_and_noted():
    with ScriptedServer(refuses=frozenset({"priority", "slo", "continuous_usage_stats"})) as server:
        capabilities = learnt(server)
    assert EVERYTHING - capabilities.fields == {"priority", "slo", "continuous_usage_stats"}
    assert len(capabilities.notes) == 3
    assert any("priority" in note and "same priority" in note for note in capabilities.notes)


def test_refusals_that_name_nothing_cost_fields_until_the_server_is_content():
    with ScriptedServer(refuses=frozenset({"user"}), named=False) as server:
        capabilities = learnt(server)
    assert "user" not in capabilities.fields
    assert {"output_tokens", "stream_options"} <= capabilities.fields


def test_a_length_that_is_taken_without_effect_does_not_count():
    with ScriptedServer(ignores=frozenset({"output_tokens"})) as server:
        capabilities = learnt(server)
    assert capabilities.forces_length == "ignore_eos"
    assert "slo" not in capabilities.fields  # a field of the same extension


def test_a_server_without_usage_has_no_proof_of_lengths():
    with ScriptedServer(usage=False) as server:
        assert learnt(server).forces_length == "ignore_eos"


def test_text_where_token_ids_are_refused():
    with ScriptedServer(takes_ids=False) as server:
        capabilities = learnt(server)
    assert not capabilities.token_prompts
    assert server.bodies[-1]["prompt"] == "Hello there."


def test_max_completion_tokens_where_max_tokens_is_unknown():
    with ScriptedServer(refuses=frozenset({"max_tokens"})) as server:
        server.named = False
        server.post = lambda path, body: (  # type: ignore[method-assign]
            (400, {"error": {"message": "Unsupported parameter; use 'max_completion_tokens' instead."}})
            if "max_tokens" in body
            else (200, server._stream(body))
        )
        assert learnt(server, "chat").limit_field == "max_completion_tokens"


def test_the_users_own_fields_win():
    with ScriptedServer() as server:
        learnt(server, temperature=None, top_k=3)
    assert server.bodies[0]["top_k"] == 3
    assert "temperature" not in server.bodies[0]


def test_a_server_that_refuses_the_plainest_question_is_reported():
    with ScriptedServer(refuses=frozenset({"model"})) as server, pytest.raises(BenchError, match="'model' is unknown"):
        learnt(server)


def test_a_wrong_path_is_reported():
    with ScriptedServer() as server:
        server.post = lambda path, body: (404, {"error": {"message": "no such model"}})  # type: ignore[method-assign]
        with pytest.raises(BenchError, match=r"404 for the model 'm' .no such model"):
            learnt(server)
