"""The model of step time: what it has learnt stays where there is no evidence, and follows where there is."""

from __future__ import annotations

import pytest

from inflight.core.estimation.latency import STALE, LatencyModel, prefill_seconds
from inflight.core.types.features import Features


def decodes(rows: int, context: int = 700) -> Features:
    return Features(rows, rows, rows, rows * context, 0.0)


def prompt(tokens: int) -> Features:
    return Features(tokens, 1, 1, 0, tokens * tokens / 2)


def kinked(held: Features) -> float:
    """A machine on which the first twelve tokens cost nothing."""
    return 0.01 + 0.0005 * max(0, held.tokens - 12) + 1e-8 * (held.decode_context + held.prefill_context)


def after_prompts() -> LatencyModel:
    model = LatencyModel()
    for number in range(60):
        for held in (prompt(64 + number % 5 * 32), decodes(40)):
            model.observe(held, kinked(held))
    return model


@pytest.mark.parametrize("steps", [10 * STALE, 60 * STALE])
def test_while_no_prompts_come_their_price_stays_within_reason(steps: int) -> None:
    """The batch shrinks meanwhile, and what tokens cost with it: that is not laid to the context of old prompts."""
    model = after_prompts()
    before = prefill_seconds(model, 512, 2000)
    for number in range(steps):
        held = decodes(max(4, 40 - 2 * number // STALE), 700 + number)
        model.observe(held, kinked(held))
    assert 0.2 * before < prefill_seconds(model, 512, 2000) < 5 * before
    assert model.seconds(held) == pytest.approx(kinked(held), rel=0.05)


def test_prompts_that_come_again_are_learnt_anew() -> None:
    model = after_prompts()
    for _ in range(10 * STALE):
        model.observe(decodes(8), 2 * kinked(decodes(8)))
    for _ in range(2 * STALE):
        for held in (prompt(128), prompt(256), decodes(8)):
            model.observe(held, 2 * kinked(held))
    assert model.seconds(prompt(200)) == pytest.approx(2 * kinked(prompt(200)), rel=0.1)
