"""The outputs are the script's, and all else is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Proposal
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, Finish, FinishedEvent, TokensEvent
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.frontend.offline import Offline
from inflight.frontend.prompts import stop_text
from inflight.testing.eager_speculation import EagerSpeculation
from inflight.testing.null import NullExecutor
from inflight.testing.scripted import Script, ScriptedExecutor
from inflight.text import Tokenizer

CAPACITY = Capacity(num_blocks=12, block_size=2, max_rows=4, max_model_len=40, vocab_size=1000)
END = 999
ANSWER = (5, 6, 7, 8, 9, END)


def loop_over(script: Script, speculation: EagerSpeculation | None = None, **changes: Any) -> EngineLoop:
    capacity = structs.replace(CAPACITY, **changes)
    scheduler = Scheduler(
        SchedulerConfig(capacity, Chunked(16), Fcfs(), end_token_ids=frozenset({END}), speculation=speculation)
    )
    return EngineLoop(scheduler, ScriptedExecutor(NullExecutor(capacity), script), VirtualClock())


def ask(loop: EngineLoop, name: str, prompt: tuple[int, ...], **params: Any) -> None:
    loop.add(Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(**{"max_tokens": 20, **params})))


def answers(events: list[Event]) -> dict[tuple[str, int], tuple[int, ...]]:
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for event in events:
        if isinstance(event, TokensEvent):
            key = event.request_id, event.sample_index
            found[key] = found.get(key, ()) + event.token_ids
    return found


def test_each_prompt_and_sample_has_its_answer() -> None:
    loop = loop_over(lambda prompt, sample: (*prompt, sample, END))
    ask(loop, "a", (1, 2))
    ask(loop, "b", (3,), n=2, temperature=1.0)
    events = loop.run()
    assert answers(events) == {("a", 0): (1, 2, 0, END), ("b", 0): (3, 0, END), ("b", 1): (3, 1, END)}
    assert {event.finishes[0] for event in events if isinstance(event, FinishedEvent)} == {Finish("stop")}


def test_stop_rules_and_lengths_are_those_of_the_request() -> None:
    loop = loop_over(lambda prompt, sample: ANSWER)
    ask(loop, "short", (1,), max_tokens=3)
    ask(loop, "stopped", (2,), stop_token_ids=(8,))
    ask(loop, "on", (3,), ignore_eos=True, max_tokens=8)
    found = answers(loop.run())
    assert (found["short", 0], found["stopped", 0]) == (ANSWER[:3], ANSWER[:4])
    assert found["on", 0][:6] == ANSWER and len(found["on", 0]) == 8


def test_a_preempted_answer_goes_on_where_it_was() -> None:
    loop = loop_over(lambda prompt, sample: (*range(prompt[0], prompt[0] + 12), END), num_blocks=14)
    for number in range(3):
        ask(loop, str(number), (100 * number,) * 4)
    found = answers(loop.run())
    assert loop.stats().preemptions > 0
    assert found == {(str(n), 0): (*range(100 * n, 100 * n + 12), END) for n in range(3)}


def test_a_conversation_finds_its_turns_in_the_cache() -> None:
    loop = loop_over(lambda prompt, sample: ANSWER)
    ask(loop, "first", (1, 2, 3))
    loop.run()
    ask(loop, "second", (1, 2, 3, *ANSWER, 4))
    (end,) = [event for event in loop.run() if isinstance(event, FinishedEvent)]
    assert end.timings.cached_tokens == 8


def test_drafts_of_the_script_are_right() -> None:
    class Knows:
        name = "knows"

        def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
            token_ids = ANSWER[view.output_tokens :][:max_drafts]
            return Proposal(token_ids, (1.0,) * len(token_ids))

        def finished(self, view: SequenceView) -> None:
            """It needs to remember nothing."""

    loop = loop_over(lambda prompt, sample: ANSWER, EagerSpeculation(Knows()))
    ask(loop, "a", (1, 2, 3))
    tokens = [event.token_ids for event in loop.run() if isinstance(event, TokensEvent)]
    assert tokens == [ANSWER[:1], ANSWER[1:]]


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    loop = loop_over(lambda prompt, sample: (5, 1000))
    ask(loop, "a", (1,))
    with pytest.raises(ValueError, match="token 1000, but the vocabulary has 1000 tokens"):
        loop.advance()


def test_texts_come_out_as_they_were_written(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    said = {"Hello": "naïve 日本 😀", "Stop": "one two three"}

    def script(prompt: tuple[int, ...], sample: int) -> list[int]:
        return tokenizer.encode(said[tokenizer.decode(list(prompt))])

    capacity = structs.replace(CAPACITY, num_blocks=200, vocab_size=tokenizer.vocab_size, max_model_len=200)
    scheduler = Scheduler(SchedulerConfig(capacity, Chunked(16), Fcfs(), stop_text=lambda of: stop_text(tokenizer, of)))
    executor = ScriptedExecutor(NullExecutor(capacity), script)
    offline = Offline(EngineLoop(scheduler, executor, VirtualClock()), tokenizer)
    collectors = [
        offline.add(Request(request_id=name, prompt_token_ids=tuple(tokenizer.encode(name)), params=params))
        for name, params in (
            ("Hello", SamplingParams(max_tokens=len(tokenizer.encode(said["Hello"])))),
            ("Stop", SamplingParams(max_tokens=50, stop=(" three",))),
        )
    ]
    for _ in offline.run():
        pass
    assert [one.output().outputs[0].text for one in collectors] == [said["Hello"], "one two"]
