"""A device whose memory runs short in a step: the request that the step began with ends, all others say what they would
have said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from inflight.core.types.events import FinishedEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

from ...test_depth import collect
from .opened import on_cpu
from .test_engine import opened

LONG = tuple(range(100, 190))


def answers(folder: Path, depth: int, limit: int | None, fault: type[Exception]) -> tuple[dict[str, Any], list[str]]:
    """Return each request's output, and the errors. limit: tokens of a step from which memory is short."""
    backend = on_cpu(depth=depth)
    begin = backend.prepare

    def prepare(slots: Any, kv_cache: Any, chunks: Any, *others: Any) -> Any:
        if limit is not None and sum(chunk.length for chunk in chunks) > limit:
            raise fault("it tried to allocate 3 GiB")
        return begin(slots, kv_cache, chunks, *others)

    backend.prepare = prepare  # type: ignore[method-assign]
    engine, said, errors = opened(folder, backend), {}, []
    prompts = [tuple(range(3, 20)), tuple(range(40, 70)), *([LONG] if limit is not None else [])]
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.8 * (number % 2), max_tokens=12)
        engine.loop.add(Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number))
        for _ in range(4 * (number == 1)):
            collect(said, engine.loop.advance())  # type: ignore[arg-type]
    while not engine.loop.idle:
        events = engine.loop.advance()
        assert isinstance(events, list)
        collect(said, events)
        errors += [one.detail for event in events if isinstance(event, FinishedEvent) for one in event.finishes]
    return said, [one for one in errors if one]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("fault", "whose"), [(torch.OutOfMemoryError, "device's"), (MemoryError, "machine's")])
def test_the_newcomer_alone_ends(tiny: Path, depth: int, fault: type[Exception], whose: str) -> None:
    wanted, _ = answers(tiny, depth, None, fault)
    said, errors = answers(tiny, depth, 80, fault)
    assert said.pop("2/0") == ([], "error")
    assert said == wanted and all(reason == "length" for _, reason in wanted.values())
    (error,) = errors
    assert f"the {whose} memory is used up; lower --max-num-batched-tokens" in error


def test_other_faults_end_all_that_is_in_the_step(tiny: Path) -> None:
    said, errors = answers(tiny, 1, 80, RuntimeError)
    assert [reason for _, reason in said.values()] == ["error"] * 3 and "3 GiB" in errors[0]
