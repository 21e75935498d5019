"""KV memory that is too small costs throughput in proportion, and never more than reserving it would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from benchmarks.oversubscription import requests, serve
from inflight.core.types.request import Request


@pytest.mark.parametrize("demand", [1.5, 3.0])
def test_too_small_a_memory_never_collapses_throughput(demand: float) -> None:
    asked = requests(80)
    roomy = serve(asked, "paged", 0.25)
    paged, reserved = serve(asked, "paged", demand), serve(asked, "reserve-request", demand)
    assert roomy.preemptions == 0 < paged.preemptions
    assert paged.throughput > reserved.throughput and paged.throughput > roomy.throughput / demand


def in_turn(number: int) -> list[Request]:
    """A request every 100 ms, so that lengths are learnt while others come."""
    return [structs.replace(one, arrival=index / 10) for index, one in enumerate(requests(number))]


@pytest.mark.parametrize(("rule", "most"), [("expected-peak, quantiles", 0.6), ("expected-peak, oracle", 0.0)])
def test_by_the_expected_peak_fewer_are_preempted_at_no_cost(rule: str, most: float) -> None:
    asked = in_turn(120)
    paged, peak = serve(asked, "paged", 2.0), serve(asked, rule, 2.0)
    assert paged.preemptions > 10 and peak.preemptions <= most * paged.preemptions
    assert peak.throughput >= 0.97 * paged.throughput


def test_where_memory_suffices_the_expected_peak_changes_nothing() -> None:
    asked = in_turn(60)
    assert serve(asked, "paged", 0.5).throughput == serve(asked, "expected-peak, quantiles", 0.5).throughput


@pytest.mark.parametrize("liars", [0, 40])
def test_who_asks_for_the_most_tokens_delays_no_others(liars: int) -> None:
    """A length of which nothing is known claims nothing, and one that is known claims what it was before."""
    asked = in_turn(80)
    for index in range(liars):
        lie = replace(asked[2 * index].params, max_tokens=3000)
        asked[2 * index] = structs.replace(asked[2 * index], params=lie, tenant="liar")
    paged, peak = serve(asked, "paged", 2.0), serve(asked, "expected-peak, quantiles", 2.0)
    honest = [index for index in range(80) if asked[index].tenant != "liar"]

    def mean_wait(found) -> float:  # type: ignore[no-untyped-def]
        return sum(found.run.outcomes[index].timings.total_ms for index in honest) / len(honest)

    assert mean_wait(peak) <= 1.03 * mean_wait(paged)
