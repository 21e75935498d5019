"""Routers choose by what they know."""

from __future__ import annotations

import pytest
from core.builders import request

from inflight.simulate.routers import Load, PrefixAffinity, RouterError, make_router


def test_round_robin_goes_round() -> None:
    router = make_router("round-robin")
    assert [router.choose(request(), [Load()] * 3) for _ in range(4)] == [0, 1, 2, 0]


def test_least_loaded_counts_requests_then_prompts() -> None:
    router = make_router("least-loaded")
    assert router.choose(request(), [Load(2, 0), Load(1, 900), Load(1, 30)]) == 2


def test_power_of_two_never_takes_the_worst_of_three() -> None:
    router = make_router("power-of-two", seed=1)
    chosen = {router.choose(request(), [Load(1), Load(5), Load(9)]) for _ in range(50)}
    assert chosen == {0, 1}


def test_affinity_follows_the_longest_prefix() -> None:
    router = PrefixAffinity()
    shared, other = list(range(32)), list(range(100, 132))
    first = router.choose(request(prompt=shared), [Load(0), Load(1)])
    assert first == 0
    assert router.choose(request(prompt=other), [Load(1), Load(0)]) == 1
    assert router.choose(request(prompt=[*shared, 5]), [Load(2), Load(1)]) == 0, "where its prefix is"
    assert router.choose(request(prompt=[*shared, 5], cache_salt="s"), [Load(2), Load(1)]) == 1, "another salt"


def test_affinity_gives_way_to_load() -> None:
    router = PrefixAffinity()
    shared = list(range(32))
    router.choose(request(prompt=shared), [Load(0), Load(1)])
    assert router.choose(request(prompt=shared), [Load(40), Load(10)]) == 1
    assert router.choose(request(prompt=shared), [Load(12), Load(10)]) == 1, "and now it is there"


def test_unknown_routers_are_refused_with_those_known() -> None:
    with pytest.raises(RouterError, match=r"known are round-robin.* Did you mean least-loaded\?"):
        make_router("least-load")
