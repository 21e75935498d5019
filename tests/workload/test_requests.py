"""Entries as the engine's requests; and an engine that runs them to their ends."""

from __future__ import annotations

from core.harness import VOCABULARY, Setup

from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.request import SLO
from inflight.metrics.observation import Targets
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass
from inflight.workload.contents import Contents
from inflight.workload.driving import core_request
from inflight.workload.lengths import Fixed
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, Pacer


def test_an_entry_says_everything_that_a_request_can_hold() -> None:
    entry = Entry(
        2.5, 3, 40, max_tokens=64, lane="batch", tenant="acme", priority=-2, cache_salt="pepper",
        targets=Targets(ttft=0.5, tpot=9.0, itl=0.1, e2e=9.0),
    )  # fmt: skip
    request = core_request(entry, "r7", (5, 6, 7))
    assert request.request_id == "r7" and request.prompt_token_ids == (5, 6, 7)
    assert (request.arrival, request.lane, request.tenant, request.priority) == (2.5, "batch", "acme", -2)
    assert request.slo == SLO(ttft=0.5, itl=0.1) and request.cache_salt == "pepper"
    assert (request.params.max_tokens, request.forced_output_tokens) == (64, 40)
    assert request.params.temperature == 0 and request.params.ignore_eos


def test_what_an_entry_leaves_open_is_as_usual() -> None:
    request = core_request(Entry(0.0, 1, 12), "0", (5,), arrival=8.0)
    assert (request.lane, request.tenant, request.priority, request.slo) == ("interactive", "", 0, SLO())
    assert (request.params.max_tokens, request.forced_output_tokens, request.arrival) == (12, 12, 8.0)


def test_an_answer_is_not_longer_than_its_limit() -> None:
    assert core_request(Entry(0.0, 1, 12, max_tokens=5), "0", (5,)).forced_output_tokens == 5


def test_an_engine_finds_shared_prefixes_and_gives_answers_of_the_length() -> None:
    """One conversation after the other in a closed loop: what is cached is what the workload says is shared."""
    chat = TrafficClass(
        name="chat",
        share=1,
        input=Fixed(20),
        output=Fixed(6),
        prefix=SharedPrefixes(system_tokens=32),
        sessions=Sessions(turns=Fixed(3), added=Fixed(10)),
    )
    workload = synthesize([chat], requests=6, concurrency=1)
    loop = Setup(num_blocks=64, block_size=16, max_rows=2, token_budget=64, max_model_len=200).loop()
    pacer, contents, now, cached = Pacer(workload), Contents(workload.entries, VOCABULARY - 1), 0.0, {}
    while not pacer.done:
        for index, intended in pacer.take_due(now):
            loop.add(core_request(workload.entries[index], str(index), contents.prompt(index), intended))
            events = loop.run()
            (end,) = (event for event in events if isinstance(event, FinishedEvent))
            assert sum(len(event.token_ids) for event in events if isinstance(event, TokensEvent)) == 6
            now = intended + end.timings.total_ms / 1000
            cached[index] = end.timings.cached_tokens
            pacer.ended(index, now)
    # The first prompt has 52 tokens, later ones 68 and 84; whole blocks of 16 are found, up to the answer before.
    assert cached == {0: 0, 1: 48, 2: 64, 3: 32, 4: 48, 5: 64}
