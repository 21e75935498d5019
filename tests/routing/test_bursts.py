"""Equal requests that come at once are spread evenly, by every policy, whatever replicas have learnt of their steps."""

from __future__ import annotations

from collections import Counter

import pytest

from inflight.routing.registry import ROUTERS, make_router
from inflight.routing.replica_view import UNKNOWN, ServingCosts, leveled
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import Router

LEARNT = ServingCosts(prompt_token=2e-3, step=0.08, row=2e-3, max_num_seqs=64)
NEARLY = ServingCosts(prompt_token=1.5e-3, step=0.06, row=1e-3, max_num_seqs=64)
NO_CROWD_SEEN = ServingCosts.probed(lambda held: 0.02 + 1e-5 * held.tokens * (held.prefill_context > 0), 64)
SLOWER = ServingCosts(prompt_token=8e-3, step=0.32, row=8e-3, max_num_seqs=64)


def burst(router: Router, count: int, names: dict[str, ServingCosts], first_tokens: int, prompt: int) -> Counter[str]:
    """Where so many equal requests go; with the last ones, first tokens of the first ones come."""
    for name, costs in names.items():
        router.join(name)
        if costs is not UNKNOWN:
            router.update_replica(name, costs, 10_000, fair=False)
    went: Counter[str] = Counter()
    for number in range(count):
        went[router.send(RoutedRequest(f"{number}", tuple(range(prompt)))).name] += 1
        if number >= count - first_tokens:
            router.first_token(f"{number - count + first_tokens}")
    return went


@pytest.mark.parametrize("policy", ROUTERS)
@pytest.mark.parametrize("count", [24, 40])
@pytest.mark.parametrize(
    "costs",
    [(UNKNOWN, UNKNOWN), (LEARNT, UNKNOWN), (UNKNOWN, LEARNT), (LEARNT, NEARLY), (NO_CROWD_SEEN, NO_CROWD_SEEN)],
    ids=["nothing is learnt", "the first has", "the second has", "by chance differently", "of one row"],
)
@pytest.mark.parametrize(("first_tokens", "prompt"), [(0, 40), (20, 40), (0, 200)])
def test_equal_requests_are_spread_within_a_tenth(
    policy: str, count: int, costs: tuple[ServingCosts, ServingCosts], first_tokens: int, prompt: int
) -> None:
    went = burst(make_router(policy), count, dict(zip("ab", costs, strict=True)), first_tokens, prompt)
    assert max(went.values()) <= 1.1 * count / 2


@pytest.mark.parametrize("policy", ["least-work", "prefix-aware"])
def test_a_replica_that_is_far_slower_gets_less(policy: str) -> None:
    went = burst(make_router(policy), 40, {"fast": LEARNT, "slow": SLOWER}, 0, 40)
    assert went["slow"] < went["fast"] / 2


def test_costs_are_leveled_where_they_are_alike() -> None:
    mean = ServingCosts(prompt_token=1.75e-3, step=0.07, row=1.5e-3, max_num_seqs=64)
    assert leveled([LEARNT, NEARLY]) == [mean, mean]
    assert leveled([LEARNT, SLOWER]) == [LEARNT, SLOWER]
    assert leveled([UNKNOWN, LEARNT])[0].step == LEARNT.step
    assert leveled([UNKNOWN, UNKNOWN]) == [UNKNOWN, UNKNOWN]
    assert leveled([]) == []
