"""Routers choose by what they know."""

from __future__ import annotations

import pytest
from core.builders import request

from inflight.config.setting import SettingsError
from inflight.core.options import OptionValues
from inflight.simulate.routers import Load, make_router


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
    router = make_router("prefix-affinity")
    shared, other = list(range(32)), list(range(100, 132))
    first = router.choose(request(prompt=shared), [Load(0), Load(1)])
    assert first == 0
    assert router.choose(request(prompt=other), [Load(1), Load(0)]) == 1
    assert router.choose(request(prompt=[*shared, 5]), [Load(2), Load(1)]) == 0, "where its prefix is"
    assert router.choose(request(prompt=[*shared, 5], cache_salt="s"), [Load(2), Load(1)]) == 1, "another salt"


def test_affinity_gives_way_to_load() -> None:
    router = make_router("prefix-affinity")
    shared = list(range(32))
    router.choose(request(prompt=shared), [Load(0), Load(1)])
    assert router.choose(request(prompt=shared), [Load(40), Load(10)]) == 1
    assert router.choose(request(prompt=shared), [Load(12), Load(10)]) == 1, "and now it is there"


def test_unknown_routers_are_refused_with_those_known() -> None:
    with pytest.raises(SettingsError, match=r"known are round-robin.* Did you mean least-loaded\?"):
        make_router("least-load")


def test_a_router_declares_its_options() -> None:
    shared = list(range(8))
    for block, chosen in ((8, 0), (16, 1)):
        router = make_router("prefix-affinity", options=OptionValues({"router_block": block, "router_slack": 9}))
        router.choose(request(prompt=shared), [Load(0), Load(1)])
        assert router.choose(request(prompt=shared), [Load(8), Load(0)]) == chosen, block


def test_an_option_of_another_router_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--router-slack has no effect with --router round-robin; .* prefix-aff"):
        make_router("round-robin", options=OptionValues({"router_slack": 2}))
    with pytest.raises(SettingsError, match=r"--router-block is 0; give a number above 0"):
        make_router("prefix-affinity", options=OptionValues({"router_block": 0}))
