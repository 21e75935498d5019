"""Policies choose by what is known of replicas: their loads, costs, and what they are taken to hold."""

from __future__ import annotations

from collections import Counter

import pytest

from inflight.config.setting import SettingsError
from inflight.core.options import OptionValues
from inflight.core.types.features import Features
from inflight.routing.registry import ROUTERS, make_router
from inflight.routing.replica_view import UNKNOWN, ServingCosts, leveled
from inflight.routing.routed_request import RoutedRequest
from inflight.routing.router import NoReplica, Router

COSTS = ServingCosts(prompt_token=0.001, step=0.01, row=0.0001, max_num_seqs=8)
SHARED = list(range(320))


class Cluster:
    """A router before replicas "0", "1", …"""

    def __init__(
        self, name: str, replicas: int = 2, seed: int = 0, options: dict[str, int] | None = None, **known: bool
    ):
        self.router = make_router(name, seed, OptionValues(options or {}))
        for number in range(replicas):
            self.router.join(str(number), COSTS, **known)
        self._sent = 0

    def request(self, prompt: list[int] | None = None, **fields: str) -> RoutedRequest:
        self._sent += 1
        return RoutedRequest(str(self._sent), tuple(prompt or [self._sent + 1000] * 20), **fields)

    def send(self, prompt: list[int] | None = None, **fields: str) -> str:
        return self.router.send(self.request(prompt, **fields)).name

    def chosen(self, prompt: list[int] | None = None, among: set[str] | None = None, **fields: str) -> str:
        """Where a request would go."""
        return self.router.choose(self.request(prompt, **fields), among).replica.name

    def put(self, replica: int, requests: int = 1, tokens: int = 20, tenant: str = "") -> list[str]:
        """So many more there."""
        ids = []
        for _ in range(requests):
            one = self.request([5000 + self._sent] * tokens, tenant=tenant)
            self.router.sent(one, self.router.choose(one, {str(replica)}).replica)
            ids.append(one.request_id)
        return ids


def test_loads_count_requests_then_prompts_or_go_round() -> None:
    cluster = Cluster("round-robin", 3)
    assert [cluster.send() for _ in range(4)] == ["0", "1", "2", "0"]
    cluster = Cluster("least-loaded", 3)
    cluster.put(0, 2)
    cluster.put(1, 1, 900)
    cluster.put(2, 1, 30)
    assert cluster.send() == "2"
    cluster = Cluster("power-of-two", 3, seed=1)
    for replica, requests in enumerate((1, 5, 9)):
        cluster.put(replica, requests)
    assert {cluster.chosen() for _ in range(50)} == {"0", "1"}


def test_least_work_counts_what_requests_cost() -> None:
    cluster = Cluster("least-work")
    cluster.put(0, 1, 9000)
    cluster.put(1, 3, 10)
    assert cluster.send() == "1", "three short prompts are less work than one long one"
    slow = ServingCosts(COSTS.prompt_token * 20, COSTS.step * 20, COSTS.row, COSTS.max_num_seqs)
    router = make_router("least-work")
    router.join("slow", slow)
    router.join("fast", COSTS)
    went = [router.send(RoutedRequest(str(number), (1,) * 50)).name for number in range(21)]
    assert went.count("slow") in (1, 2), "a slow one gets its share"


@pytest.mark.parametrize("name", ["prefix-affinity", "prefix-aware"])
def test_a_prompt_goes_where_its_beginning_is(name: str) -> None:
    cluster = Cluster(name)
    first, other = cluster.send(SHARED), cluster.send([7] * 320)
    assert {first, other} == {"0", "1"}, "nothing in common: to the one that is free"
    cluster.put(int(first))
    assert cluster.send([*SHARED, 5]) == first, "though it is busier"
    assert cluster.send([*SHARED, 5], salt="s") == other, "under another salt it is another prefix"


def test_affinity_gives_way_to_load() -> None:
    cluster = Cluster("prefix-affinity")
    first = cluster.send(SHARED)
    cluster.put(int(first), 40)
    cluster.put(1 - int(first), 10)
    assert cluster.send(SHARED) != first
    cluster.put(1 - int(first), 5)
    assert cluster.send(SHARED) != first, "and now it is there"


def test_a_prefix_is_worth_the_seconds_that_it_saves() -> None:
    cluster = Cluster("prefix-aware")
    first = cluster.send(SHARED)
    cluster.router.first_token("1")
    cluster.router._reuse.value = 0.0  # no request reuses what is computed
    queued = cluster.put(int(first), 1, 250)  # 0.25 s, and the prefix saves 0.32 s
    assert cluster.chosen([*SHARED, 5]) == first
    cluster.put(int(first), 1, 150)
    assert cluster.chosen([*SHARED, 5]) != first, "0.4 s ahead of it"
    cluster.router.first_token(queued[0])
    assert cluster.chosen([*SHARED, 5]) == first, "less is ahead of it again"


def test_rows_that_are_all_taken_are_waited_for() -> None:
    cluster = Cluster("prefix-aware")
    first = cluster.send(SHARED)
    for one in cluster.put(int(first), COSTS.max_num_seqs):
        cluster.router.first_token(one)
    assert cluster.chosen([*SHARED, 5]) != first


def test_with_tenants_in_turns_others_lines_are_not_ones_own() -> None:
    """Replica 0 has a long line of one tenant, replica 1 a shorter one of ours."""
    for fair, chosen in ((True, "0"), (False, "1")):
        cluster = Cluster("prefix-aware", fair=fair)
        cluster.put(0, 1, 4000, tenant="heavy")
        cluster.put(1, 1, 1000, tenant="ours")
        assert cluster.chosen([1] * 100, tenant="ours") == chosen


def test_a_session_stays_until_its_replica_is_overloaded_or_gone() -> None:
    cluster = Cluster("session-affinity", 3)
    home = cluster.send(session="s")
    cluster.put(int(home), 3)
    assert cluster.send(session="s") == home
    cluster.put(int(home), 20)
    moved = cluster.send(session="s")
    assert moved != home and cluster.send(session="s") == moved
    cluster.router.leave(moved)
    assert cluster.send(session="s") != moved


def test_replicas_that_are_asked_of_alone_are_chosen_among() -> None:
    for name in ROUTERS:
        cluster = Cluster(name, 3)
        assert {cluster.chosen(among={"1"}) for _ in range(3)} == {"1"}
        with pytest.raises(NoReplica):
            cluster.router.choose(cluster.request(), set())


def test_costs_are_probed_from_any_step_model() -> None:
    def seconds(held: Features) -> float:
        return 0.01 + held.tokens * 1e-4 + held.decode_context * 1e-7

    costs = ServingCosts.probed(seconds, 32)
    assert costs.prompt_token == pytest.approx(1e-4)
    assert costs.step == pytest.approx(0.01 + 1e-4 + 1024e-7) and costs.row == pytest.approx(1e-4 + 1024e-7)
    assert costs.decode_step(3) == pytest.approx(seconds(Features(3, 3, 3, 3 * 1024, 0.0)))


def test_a_router_declares_its_options() -> None:
    shared = list(range(8))
    for block, stays in ((8, True), (16, False)):
        cluster = Cluster("prefix-affinity", options={"router_block": block, "router_slack": 9})
        first = cluster.send(shared)
        cluster.put(int(first), 8)
        assert (cluster.send(shared) == first) is stays, block


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("least-load", {}, r"known are round-robin.* Did you mean least-loaded\?"),
        ("round-robin", {"router_slack": 2}, r"--router-slack has no effect with --router round-robin; .* prefix-aff"),
        ("prefix-affinity", {"router_block": 0}, r"--router-block is 0; give a number above 0"),
    ],
)
def test_unknown_routers_and_options_of_others_are_refused(name: str, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        make_router(name, options=OptionValues(options))


def test_names_of_routers_are_what_users_write() -> None:
    assert isinstance(make_router("prefix-aware"), Router)
    assert all(entry.name == name for name, entry in ROUTERS.items())


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
