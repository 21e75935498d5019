"""Load generators of others finish against our server, and count the tokens that we count."""

from __future__ import annotations

import pytest

from benchmarks.judges.__main__ import JUDGES
from benchmarks.judges.judge import Load
from benchmarks.judges.run import BUILT_IN, run

from .environments import find_python

pytestmark = pytest.mark.foreign
LOAD = Load(requests=12, rate=4, concurrency=2, input_tokens=64, output_tokens=8)
SECONDS = 240


@pytest.mark.parametrize("name", JUDGES)
def test_no_request_fails_and_tokens_are_counted_alike(name: str) -> None:
    judge = JUDGES[name]
    if judge.environment.python and find_python(judge.environment.python) is None:
        pytest.skip(f"{name} needs Python {judge.environment.python}")
    seen = run(judge, BUILT_IN, LOAD, seconds=SECONDS)
    for view in (seen.theirs, seen.ours, seen.recorded):
        assert (view.failed, view.requests) == (0, seen.ours.requests)
    assert seen.ours.requests >= LOAD.requests
    for counted in ("input_tokens", "output_tokens"):
        ours = getattr(seen.ours, counted)
        assert getattr(seen.recorded, counted) == ours
        assert getattr(seen.theirs, counted) in (ours, None), counted  # None: it does not report them
