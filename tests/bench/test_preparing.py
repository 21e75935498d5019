"""Prompts of exact length as the server counts, whatever it reports of its tokenizer."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from inflight.bench.client_types import BenchError, Target
from inflight.bench.preparing import Prepared, RequestOptions, prepare
from inflight.bench.prompts import ordinary
from inflight.bench.served_model import ServedModel
from inflight.metrics.observation import Targets
from inflight.workload.workload import Entry, Workload

from .scripted import ScriptedServer

ENTRIES = (
    Entry(0.0, 50, 7),
    Entry(0.0, 100, 3, prefix=(11, 12), block_size=32),
    Entry(0.0, 100, 3, prefix=(11, 12), block_size=32),
    Entry(0.0, 300, 9, after=1),
)
WORKLOAD = Workload(ENTRIES, "test")


def prepared(server: ScriptedServer, endpoint="completions", workload=WORKLOAD, **options) -> Prepared:
    return prepare(Target(server.url, endpoint), ServedModel("m"), workload, RequestOptions(**options))


def made(found: Prepared, index: int, before=None, workload=WORKLOAD, seed=1):
    data, conversation = found.bodies(workload, seed).body(index, before)
    return json.loads(data), conversation


def test_token_ids_are_exact_shared_and_within_the_vocabulary():
    with ScriptedServer(vocab_size=5000) as server:
        found = prepared(server)
        bodies = [made(found, index)[0] for index in range(3)]
    assert [len(body["prompt"]) for body in bodies] == [50, 100, 100]
    assert bodies[1]["prompt"][:64] == bodies[2]["prompt"][:64]
    assert bodies[1]["prompt"][64:] != bodies[2]["prompt"][64:]
    assert max(max(body["prompt"]) for body in bodies) < 5000


def test_a_seed_makes_other_contents():
    with ScriptedServer() as server:
        found = prepared(server)
    assert made(found, 0, seed=1)[0]["prompt"] == made(found, 0, seed=1)[0]["prompt"]
    assert made(found, 0, seed=1)[0]["prompt"] != made(found, 0, seed=2)[0]["prompt"]


def test_a_later_turn_begins_with_the_conversation_and_is_as_long_as_asked():
    with ScriptedServer() as server:
        found = prepared(server)
    bodies = found.bodies(WORKLOAD, 1)
    _, conversation = bodies.body(1, None)
    before = bodies.answered(conversation, " a a a", (7, 8, 9))
    turn = json.loads(bodies.body(3, before)[0])["prompt"]
    assert turn[:103] == [*conversation, 7, 8, 9]
    assert len(turn) == 300


def test_text_of_exact_length_by_the_servers_own_count():
    with ScriptedServer(takes_ids=False) as server:
        found = prepared(server)
        texts = [made(found, index)[0]["prompt"] for index in range(3)]
        lengths = [server.post("/tokenize", {"prompt": text})[1]["count"] for text in texts]
    assert lengths == [50, 100, 100]
    assert texts[1].split()[:64] == texts[2].split()[:64]
    assert any("server's /tokenize" in note for note in found.notes)


def test_chat_leaves_room_for_the_template():
    with ScriptedServer() as server:
        found = prepared(server, "chat")
        bodies = found.bodies(WORKLOAD, 1)
        data, conversation = bodies.body(1, None)
        before = bodies.answered(conversation, "a b c", ())
        turn = json.loads(bodies.body(3, before)[0])
        lengths = [server.post("/tokenize", json.loads(body))[1]["count"] for body in (data, json.dumps(turn))]
    assert [one["role"] for one in turn["messages"]] == ["user", "assistant", "user"]
    assert lengths == [100, 300]


def test_the_templates_tokens_are_measured_where_they_are_not_reported():
    with ScriptedServer(tokenize_messages=False) as server:
        found = prepared(server, "chat")
        body, _ = made(found, 0)
        assert server._prompt_tokens(body) == 50
    assert any("usage of one request" in note for note in found.notes)


def test_text_by_a_tokenizer_that_lies_here(tiny):
    with ScriptedServer(tokenize=False) as server:
        found = prepared(server, "chat", tokenizer=tiny)
        bodies = pickle.loads(pickle.dumps(found.bodies(WORKLOAD, 1)))  # as another process of the client has it
    counter = found.prompts.counter
    for index, wanted in ((0, 50), (1, 100)):
        _, conversation = bodies.body(index, None)
        assert counter.chat(conversation) == wanted
    _, conversation = bodies.body(3, bodies.answered(conversation, "some answer", ()))
    assert counter.chat(conversation) == 300


def test_text_without_any_tokenizer_is_refused():
    with ScriptedServer(tokenize=False) as server, pytest.raises(BenchError, match="--tokenizer"):
        prepared(server, "chat")


@pytest.mark.parametrize("size", [300, 1500, 40_000])
def test_an_unknown_vocabulary_is_found_from_above(size):
    with ScriptedServer(vocab_size=size) as server:
        found = prepared(server)
        assert server.vocab_size / 4 < found.prompts.last <= server.vocab_size


def test_a_vocabulary_that_the_server_reports_is_not_tried_out():
    with ScriptedServer(vocab_size=300, reports_vocab_size=True) as server:
        assert prepared(server).prompts.last == 270
        assert len(server.bodies) == 1


def test_ids_at_both_ends_are_left_out():
    assert ordinary(128_000).first == 1000
    assert ordinary(128_000).last == 115_200
    assert ordinary(300).first == 30


def test_prompts_of_a_trace_are_sent_as_they_are():
    with ScriptedServer(tokenize=False) as server:
        workload = Workload(
            (Entry(0.0, 3, 2, prompt="one two three"), Entry(0.0, 2, 2, prompt="and four", after=0)), "t"
        )
        found = prepared(server, "chat", workload)
        bodies = found.bodies(workload, 1)
    _, conversation = bodies.body(0, None)
    data, _ = bodies.body(1, bodies.answered(conversation, "yes", ()))
    assert [one["content"] for one in json.loads(data)["messages"]] == ["one two three", "yes", "and four"]


def test_token_ids_of_a_trace_cannot_be_chatted():
    workload = Workload((Entry(0.0, 3, 2, prompt=(5, 6, 7)),), "t")
    with ScriptedServer() as server:
        assert made(prepared(server, workload=workload), 0, workload=workload)[0]["prompt"] == [5, 6, 7]
        with pytest.raises(BenchError, match="--endpoint completions"):
            prepared(server, "chat", workload)


def fields(server: ScriptedServer, entry: Entry, **options) -> dict:
    workload = Workload((entry,), "t")
    return made(prepared(server, workload=workload, **options), 0, workload=workload)[0]


def test_fields_of_our_own_dialect():
    entry = Entry(
        0.0,
        20,
        5,
        max_tokens=40,
        lane="batch",
        tenant="acme",
        priority=3,
        targets=Targets(ttft=0.5, itl=0.05, tpot=0.04),
    )
    with ScriptedServer() as server:
        body = fields(server, replace(entry, cache_salt="s"))
    assert (body["max_tokens"], body["output_tokens"]) == (40, 5)
    assert (body["service_tier"], body["user"], body["priority"], body["cache_salt"]) == ("flex", "acme", 3, "s")
    assert body["slo"] == {"ttft_ms": 500.0, "itl_ms": 50.0, "tpot_ms": 40.0}
    assert body["stream"] and body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "return_token_ids" not in body  # only conversations need them


def test_fields_of_a_server_that_only_keeps_from_ending():
    with ScriptedServer(ignores=frozenset({"output_tokens"})) as server:
        body = fields(server, Entry(0.0, 20, 5, max_tokens=40))
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
    assert "output_tokens" not in body and "slo" not in body


def test_null_takes_a_field_away():
    with ScriptedServer() as server:
        body = fields(server, Entry(0.0, 20, 5), extra={"temperature": None, "top_p": 0.9})
    assert "temperature" not in body
    assert body["top_p"] == 0.9
