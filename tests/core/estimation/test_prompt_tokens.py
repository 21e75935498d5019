"""Lengths by the tokens of prompts: what decides is found among what does not, and nothing is said too early."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from inflight.core.estimation.output_length import Predictor, Quantiles
from inflight.core.estimation.prompt_tokens import MIN_OUTPUTS, PromptTokens
from inflight.core.types.request import Request

from ..builders import request

LONG, SHORT = 7, 8
LIMIT = 200


def asked(draws: random.Random, kind: int) -> Request:
    others = [draws.randrange(100, 2000) for _ in range(12)]
    return request("a", [*others, kind, *others[:3]], output=None, max_tokens=LIMIT)


def taught(outputs: int) -> PromptTokens:
    predictor, draws = PromptTokens(), random.Random(1)
    for number in range(outputs):
        kind = LONG if number % 2 else SHORT
        length = draws.randrange(80, 260) if kind == LONG else draws.randrange(5, 20)
        predictor.observe(asked(draws, kind), min(length, LIMIT))
    return predictor


def test_a_token_that_decides_is_found() -> None:
    predictor, draws = taught(400), random.Random(2)
    long = [predictor.lengths(asked(draws, LONG), LIMIT, 0) for _ in range(20)]
    short = [predictor.lengths(asked(draws, SHORT), LIMIT, 0) for _ in range(20)]
    assert min(one.mean() for one in long) > 1.5 * max(one.mean() for one in short)
    assert sum(one.mean() for one in long) / 20 == pytest.approx(150, rel=0.25), "those that were cut count as longer"
    assert all(one.starts[0] >= 1 and one.end <= LIMIT for one in (*long, *short))
    assert predictor.lengths(asked(draws, LONG), LIMIT, 150).starts[0] == 151


def test_the_same_outputs_teach_the_same() -> None:
    one, other = taught(150), taught(150)
    ask = asked(random.Random(3), LONG)
    assert one.lengths(ask, LIMIT, 0) == other.lengths(ask, LIMIT, 0)


def test_quantiles_answer_until_enough_outputs_have_ended_by_themselves() -> None:
    predictor, quantiles, draws = PromptTokens(), Quantiles(), random.Random(4)
    for _ in range(MIN_OUTPUTS + 10):
        ask = asked(draws, LONG)
        predictor.observe(ask, LIMIT)  # all are cut
        quantiles.observe(ask, LIMIT)
    ask = asked(draws, LONG)
    assert predictor.lengths(ask, LIMIT, 0) == quantiles.lengths(ask, LIMIT, 0)


def test_an_empty_prompt_and_huge_numbers_are_no_error() -> None:
    predictor = taught(100)
    for tokens, limit in ((1, 1), (1, 10**9), (10**6, 10**9)):
        odd = request("b", [1] * tokens, output=None, max_tokens=limit)
        lengths = predictor.lengths(odd, limit, 0)
        assert 0.999 <= lengths.mean() <= 1.001 * limit
        predictor.observe(odd, min(limit, 10**6))


# -- a tenant that lies ---------------------------------------------------------------------------------------------

KINDS = 8  # of honest prompts, whose outputs are each twice as long as the one before


def of_kind(draws: random.Random, kind: int, tenant: str, **fields: Any) -> Request:
    return request("a", [1000 + kind, *(draws.randrange(500) for _ in range(20))], None, tenant=tenant, **fields)


def taught_beside(lie: Callable[[int], tuple[int, int | None]], predictor: Predictor, draws: random.Random) -> None:
    """Teach outputs of an honest tenant and of one that sends the same prompts. lie: returns the length of an output of
    the latter and its max_tokens, from what the prompt suggests."""
    for _ in range(800):
        kind = draws.randrange(KINDS)
        length = int(8 * 2**kind * draws.uniform(0.8, 1.25))
        predictor.observe(of_kind(draws, kind, "honest"), length)
        output, most = lie(length)
        predictor.observe(of_kind(draws, kind, "liar", max_tokens=most), max(1, output))


def share_in_order(predictor: Predictor, draws: random.Random) -> float:
    """Return the share of pairs of honest requests that are predicted in their order."""
    kinds = [kind for kind in range(KINDS) for _ in range(5)]
    means = [predictor.lengths(of_kind(draws, kind, "honest"), 4096, 0).mean() for kind in kinds]
    pairs = [(one, other) for one, other in combinations(range(len(kinds)), 2) if kinds[one] != kinds[other]]
    return sum(means[one] < means[other] for one, other in pairs) / len(pairs)


LIES: dict[str, Callable[[int], tuple[int, int | None]]] = {
    "much longer": lambda length: (16 * length, None),
    "much shorter": lambda length: (length // 16, None),
    "always long": lambda length: (2000, None),
    "always one token": lambda length: (1, None),
    "cut at once": lambda length: (1, 1),
    "cut, and so said to be longer": lambda length: (4 * length, 4 * length),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_tenant_that_lies_reverses_few_pairs_of_others(lie: Callable[[int], tuple[int, int | None]]) -> None:
    predictor, draws = PromptTokens(), random.Random(0)
    taught_beside(lie, predictor, draws)
    assert share_in_order(predictor, draws) > 1 - 1 / 7


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_quantiles_of_a_tenant_are_its_own(lie: Callable[[int], tuple[int, int | None]]) -> None:
    """Once it has enough of them: whatever others send changes nothing."""
    found = []
    for one in (lie, LIES["much longer"]):
        predictor, draws = Quantiles(), random.Random(0)
        taught_beside(one, predictor, draws)
        found.append(predictor.lengths(of_kind(draws, 3, "honest"), 4096, 0))
    assert found[0] == found[1]
