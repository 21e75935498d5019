"""Two steps in flight over a backend that computes beside its caller: the tokens of one at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from breadth import usual_of

from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution import computing
from inflight.execution.backends.reference import ReferenceBackend

from .threaded import Threaded

LITTLE_MEMORY: dict[str, Any] = {"num_blocks": 14, "watermark": 0.0}
SHAPES: list[dict[str, Any]] = [
    {},
    LITTLE_MEMORY,
    {"max_num_seqs": 3, "max_num_batched_tokens": 12},
    {"enable_prefix_caching": False, **LITTLE_MEMORY},
]
Said = dict[str, tuple[list[int], str]]


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threaded]:
    backend = Threaded(ReferenceBackend("float32"))
    monkeypatch.setattr(computing, "open_backend", lambda *given, **named: backend)
    yield backend
    backend.end()


def requests(seed: int, count: int = 9) -> list[Request]:
    chance, made = random.Random(seed), []
    beginning = tuple(chance.randrange(384) for _ in range(33))
    for n in range(count):
        prompt = (beginning if chance.random() < 0.5 else ()) + tuple(
            chance.randrange(384) for _ in range(chance.randrange(1, 30))
        )
        params = SamplingParams(
            temperature=chance.choice([0.0, 0.9]),
            max_tokens=chance.choice([1, 5, 40]),
            stop=chance.choice([(), ("e",), ("1",)]),
            repetition_penalty=chance.choice([1.0, 1.3]),
            min_tokens=1,
            n=chance.choice([1, 1, 2]),
            logprobs=chance.choice([None, 2]),
        )
        made.append(Request(request_id=str(n), prompt_token_ids=prompt, params=params, seed=n))
    return made


def opened(folder: Path, **shape: Any) -> Engine:
    return build_engine(EngineSettings(model=str(folder), **shape))


def run(engine: Engine, given: list[Request], aborts: dict[int, str] | None = None) -> Said:
    """Return each sample's output and how it ended. aborts: round → the request aborted before it."""
    said: dict[str, tuple[list[int], str]] = {}
    for request in given:
        engine.loop.add(request)
    rounds = 0
    while not engine.loop.idle:
        if (gone := (aborts or {}).get(rounds)) is not None:
            collect(said, engine.loop.abort(gone))
        outcome = engine.loop.advance()
        assert isinstance(outcome, list)
        collect(said, outcome)
        rounds += 1
    return said


def collect(said: Said, events: list[Any]) -> None:
    for event in events:
        if isinstance(event, TokensEvent):
            key = f"{event.request_id}/{event.sample_index}"
            said[key] = ([*said.get(key, ([], ""))[0], *event.token_ids], "")
        elif isinstance(event, FinishedEvent):
            for sample, finish in enumerate(event.finishes):
                key = f"{event.request_id}/{sample}"
                said[key] = (said.get(key, ([], ""))[0], finish.reason)


def alone(folder: Path, given: list[Request], **shape: Any) -> Said:
    """One step at a time, in this thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "open_backend", lambda *given, **named: ReferenceBackend("float32"))
        engine = opened(folder, **shape)
    assert engine.settings["depth"].value == 1
    return run(engine, given)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_tokens_as_one_step_at_a_time(tiny: Path, threaded: Threaded, shape: dict[str, Any]) -> None:
    """With stop strings, samples that share a prompt, penalties, and preemption where there is little memory."""
    engine = opened(tiny, **shape)
    assert engine.settings["depth"].value == 2
    assert run(engine, requests(1)) == alone(tiny, requests(1), **shape)
    assert run(engine, requests(2)) == alone(tiny, requests(2), **shape), "nothing is left of the first"


def test_submitting_does_not_wait_for_the_device(tiny: Path, threaded: Threaded) -> None:
    engine = opened(tiny)
    threaded.ready.clear()
    runner, plans = engine.executor, []
    scheduler = engine.loop._scheduler
    for request in requests(3):
        engine.loop.add(request)
    for _ in range(2):
        plan = scheduler.plan(0.0)
        plans.append((plan, runner.submit(plan)))  # type: ignore[arg-type]
    threaded.ready.set()
    assert all(pending.result().error is None for _, pending in plans)


def test_an_aborted_request_said_the_same_until_then(tiny: Path, threaded: Threaded) -> None:
    given = requests(4)
    want = alone(tiny, given)
    got = run(opened(tiny), given, aborts={3: "1", 7: "5", 8: "2"})
    assert got.keys() == want.keys()
    for key, (tokens, end) in got.items():
        if end == "abort":
            assert key.split("/")[0] in ("1", "5", "2") and tokens == want[key][0][: len(tokens)]
        else:
            assert (tokens, end) == want[key]


@pytest.mark.parametrize("shape", [{}, {"max_num_seqs": 3, "max_num_batched_tokens": 12}])
@pytest.mark.parametrize("broken", usual_of(range(8), 0, 2, 5))
def test_a_step_that_breaks_in_flight_ends_its_own_requests_alone(
    tiny: Path, threaded: Threaded, monkeypatch: pytest.MonkeyPatch, broken: int, shape: dict[str, Any]
) -> None:
    """The next one was submitted with its tokens still to come; a request it brought in says what it would have said,
    since nothing of the broken step's sequences writes to blocks that are not theirs."""
    given = requests(5, count=14)
    want = alone(tiny, given, **shape)
    engine, prepare, count = opened(tiny, **shape), threaded._inner.prepare, 0

    def breaks(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == broken + 1:
            raise FloatingPointError("no such luck")
        return prepare(*arguments)

    monkeypatch.setattr(threaded._inner, "prepare", breaks)
    got = run(engine, given)
    ended = {key for key, (_, end) in got.items() if end == "error"}
    assert ended and (shape == {} or len(ended) < len(got))
    for key in got.keys() - ended:
        assert got[key] == want[key], key
    assert run(engine, given) == want, "nothing is left of it"
