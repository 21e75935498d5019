"""An engine in a process of its own, and the ways in which it fails."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from benchmarks.peers.process import EngineFailed
from benchmarks.peers.stepping import Work

from .builders import process


def test_it_answers_every_list_with_what_was_observed() -> None:
    before = time.monotonic()
    with closing(process()) as engine:
        assert engine.ready() == {"version": "1.0", "settings": "of no use"}
        first, second = engine.send([Work(0.0, [7, 8, 9], 2), Work(0.01, [7], 4)])
        (again,) = engine.send([Work(0.0, [7], 1)])
    assert (first.prompt_tokens, first.output_tokens, len(second.token_times)) == (3, 2, 4)
    assert second.intended == pytest.approx(first.intended + 0.01)
    assert before < engine.started < first.intended < first.token_times[0], "one clock for both processes"
    assert again.intended >= second.ended


def test_its_peak_memory_is_known_while_it_lives() -> None:
    with closing(process()) as engine:
        engine.ready()
        assert 2**20 < engine.peak_resident_bytes() < 2**31


def test_one_that_cannot_load_says_why() -> None:
    with closing(process(load_error="no such weights")) as engine, pytest.raises(EngineFailed, match="no such weights"):
        engine.ready()


def test_one_that_dies_at_work_says_why() -> None:
    with closing(process(dies_after=1)) as engine:
        engine.ready()
        engine.send([Work(0.0, [1], 1)])
        with pytest.raises(EngineFailed, match="exit status 1: RuntimeError: out of luck"):
            engine.send([Work(0.0, [1], 1)])
        with pytest.raises(EngineFailed):
            engine.send([Work(0.0, [1], 1)])


def test_one_that_hangs_is_killed() -> None:
    with closing(process(patience=2.0, seconds=3600)) as engine:
        engine.ready()
        with pytest.raises(EngineFailed, match="no answer within 2 s"):
            engine.send([Work(0.0, [1], 1)])
        with pytest.raises(EngineFailed):
            engine.send([Work(0.0, [1], 1)])


def test_one_that_gives_other_tokens_than_asked_is_not_believed() -> None:
    with closing(process(tokens_over=1)) as engine:
        engine.ready()
        with pytest.raises(EngineFailed, match="4 tokens where 3 were asked"):
            engine.send([Work(0.0, [1], 3), Work(0.0, [1], 4)])
