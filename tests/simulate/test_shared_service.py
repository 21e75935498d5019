"""Fair shares over several replicas: within 5 % over any 10 s, wherever tenants' requests go, and when a replica is
lost; in virtual time, with each replica's own scheduler."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import pytest
from breadth import first_of
from core.builders import request

from inflight.config.scheduling import SchedulingSettings
from inflight.core.policies.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT
from inflight.core.tenants import SYNC_PERIOD_S, TenantUsage, usage_of_others
from inflight.core.types.events import FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.records.schema import of_kind, read_records
from inflight.routing.router import Router
from inflight.simulate.cluster import Cluster
from inflight.simulate.replay import replay
from inflight.simulate.replicas import Replica, RoutedPool
from inflight.simulate.simulation import PoolBuilder, Requests, SimulationSetup, simulate
from inflight.workload.workload import Entry, Workload

from .setups import chat, pool

WINDOW, ALLOWED = 10.0, 0.05
PROMPTS, ANSWERS = (20, 120), (10, 50)  # tokens; an answer takes less than a second
BACKLOG = 30  # requests that each tenant has at each of its replicas, which has 8 rows
FAIR = SchedulingSettings.of(policy="fair")


class Front:
    """A front before replicas that keeps each tenant's queues full, and exchanges the replicas' usage."""

    def __init__(self, places: Mapping[str, Sequence[str]], weights: Mapping[str, float]):
        self._made = pool(SchedulingSettings.of(policy="fair", tenant_weights=weights), num_blocks=800, budget=128)
        self.places = dict(places)
        self.replicas: dict[str, Replica] = {}
        self.served: list[tuple[float, str, float]] = []
        self._of: dict[str, tuple[Request, str]] = {}  # request id → it, and its replica
        self._fresh: dict[str, int] = {}  # prompt tokens of those without a token yet
        self._usage: dict[str, TenantUsage] = {}
        self._next_exchange = 0.0
        self._random, self._numbers = random.Random(1), count()

    def join(self, name: str) -> None:
        self.replicas[name] = PoolBuilder(self._made).replica(len(self.replicas))

    def lose(self, name: str, places: Mapping[str, Sequence[str]]) -> None:
        """Move a tenant's requests to other replicas, from now on."""
        del self.replicas[name]
        self._of = {key: one for key, one in self._of.items() if one[1] != name}
        self.places = dict(places)

    def run(self, until: float) -> None:
        while (now := min(one.now for one in self.replicas.values())) < until:
            self._fill(now)
            if now >= self._next_exchange:
                self._next_exchange = now + SYNC_PERIOD_S
                self._usage = {
                    name: one.sync_tenant_usage(usage_of_others(self._usage, name))
                    for name, one in self.replicas.items()
                }
            replica = min(self.replicas.values(), key=lambda one: one.now)
            for event in replica.step():
                asked, _ = self._of[event.request_id]
                if isinstance(event, FinishedEvent):
                    del self._of[event.request_id]
                elif isinstance(event, TokensEvent):
                    first = self._fresh.pop(event.request_id, 0)
                    work = PROMPT_WEIGHT * first + OUTPUT_WEIGHT * len(event.token_ids)
                    self.served.append((replica.now, asked.tenant, work))

    def _fill(self, now: float) -> None:
        held = Counter((asked.tenant, name) for asked, name in self._of.values())
        for tenant, names in self.places.items():
            for name in names:
                for _ in range(BACKLOG - held[tenant, name]):
                    self._send(tenant, name, now)

    def _send(self, tenant: str, name: str, now: float) -> None:
        key, lengths = str(next(self._numbers)), self._random.randint
        asked = request(key, [len(key)] * lengths(*PROMPTS), lengths(*ANSWERS), tenant=tenant, arrival=now)
        self._fresh[key] = len(asked.prompt_token_ids)
        self._of[key] = asked, name
        self.replicas[name].add(asked, now)

    def worst(self, shares: Mapping[str, float], begin: float, end: float) -> float:
        """How far a tenant's share of any window was from this, at most."""
        total, worst, at = sum(shares.values()), 0.0, begin
        while at + WINDOW <= end:
            got = dict.fromkeys(shares, 0.0)
            for time, tenant, work in self.served:
                if at <= time < at + WINDOW:
                    got[tenant] += work
            for tenant, share in shares.items():
                worst = max(worst, abs(got[tenant] / sum(got.values()) - share / total))
            at += 1.0
        return worst


EVERYWHERE = {"x": ("0", "1"), "y": ("0", "1")}
ONE_IS_XS = {"x": ("0", "1"), "y": ("1",)}
IN_A_RING = {"x": ("0", "1", "2"), "y": ("2", "3"), "z": ("0", "3")}


@pytest.mark.parametrize(
    ("places", "weights"),
    first_of(
        [
            (EVERYWHERE, {"x": 1.0, "y": 3.0}),
            (ONE_IS_XS, {"x": 1.5, "y": 1.0}),
            (EVERYWHERE, {"x": 1.0, "y": 1.0}),
            (ONE_IS_XS, {"x": 1.0, "y": 1.0}),
            (IN_A_RING, {"x": 1.0, "y": 1.0, "z": 1.0}),
        ],
        2,
    ),
)
def test_shares_hold_over_all_replicas(places: Mapping[str, Sequence[str]], weights: Mapping[str, float]) -> None:
    front = Front(places, weights)
    for name in sorted({name for names in places.values() for name in names}):
        front.join(name)
    front.run(40.0)
    assert front.worst(weights, 2.0, 40.0) < ALLOWED


def test_shares_hold_through_the_loss_of_a_replica() -> None:
    """The one that both shared is gone; for five seconds all have the other, and then a new one is there."""
    shares = {"x": 1.0, "y": 1.0}
    front = Front(ONE_IS_XS, shares)
    front.join("0")
    front.join("1")
    front.run(20.0)
    front.lose("1", {"x": ("0",), "y": ("0",)})
    front.run(25.0)
    front.join("2")
    front.replicas["2"].add(request("wakes", [1], 1, tenant="x", arrival=25.0), 25.0)
    front.replicas["2"].step()
    front.places = {"x": ("0", "2"), "y": ("2",)}
    front.run(60.0)
    assert front.worst(shares, 2.0, 60.0) < ALLOWED


class Pinned:
    """A routing policy: a session is a replica's number, behind the name of its tenant."""

    uses_prefixes = False

    def choose(self, request: object, candidates: Sequence[object]) -> int:
        return int(request.session.rpartition(":")[2])  # type: ignore[attr-defined]


def test_a_cluster_exchanges_tenant_usage() -> None:
    places = [(tenant, at) for tenant, every in ONE_IS_XS.items() for at in every]
    entries = [Entry(0.0, 70, 60, session=at, tenant=tenant) for tenant, at in places] * 60
    workload, of = Workload(tuple(entries), "x"), pool(FAIR, replicas=2, num_blocks=800, prefix_caching=False)

    def first_tokens(shares_service: bool) -> dict[str, list[float]]:
        """Return the tenants' first tokens at the replica that both have."""
        router = Router(Pinned())
        for name in "01":
            router.join(name, fair=True)
        made = [PoolBuilder(of).replica(number) for number in range(2)]
        cluster = Cluster(
            workload, Requests(workload, 1000, 0), RoutedPool(made, router), shares_service=shares_service
        )
        times: dict[str, list[float]] = {"x": [], "y": []}
        for entry, seen in zip(workload.entries, cluster.run(), strict=True):
            if entry.session == "1":
                times[entry.tenant].append(seen.token_times[0])
        return {tenant: sorted(of_tenant) for tenant, of_tenant in times.items()}

    separate, together = first_tokens(False), first_tokens(True)
    assert abs(separate["x"][40] - separate["y"][40]) < 2.0, "in turns"
    assert together["y"][-1] < together["x"][10], "x has the other one"


def test_records_of_replicas_that_exchange_usage_replay(tmp_path: Path) -> None:
    turns = [
        Entry(one.arrival, one.prompt_tokens, one.output_tokens, tenant="xyy"[at % 3])
        for at, one in enumerate(chat(80, 40.0).entries)
    ]
    simulate(Workload(tuple(turns), "x"), SimulationSetup(pool(FAIR, replicas=2, num_blocks=40)), tmp_path / "r.jsonl")
    lines = 0
    for path in tmp_path.iterdir():
        records = list(read_records(path))
        lines += len(of_kind(records, "service"))
        _, outcome = replay(records)
        assert outcome.difference is None and outcome.steps == outcome.recorded_steps > 20
    assert lines > 10
    assert len(list(tmp_path.iterdir())) == 2
