"""Fair share: which tenant is next and which is preempted, the published bound, and a light tenant beside a flood."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from inflight.core.policies.fair import MAX_IDLE_TENANTS, OUTPUT_WEIGHT, PROMPT_WEIGHT, Fair
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.plan import Capacity
from inflight.testing.null import NullExecutor

from .builders import request, sequence, view


class Tenants:
    """A scheduler under `fair`, and what its plans give to each tenant, in the units of the bound."""

    def __init__(self, rows: int, budget: int = 40, weights: dict[str, float] | None = None):
        capacity = Capacity(400, 2, rows, 70, 8)
        self.scheduler = Scheduler(SchedulerConfig(capacity, Chunked(budget), Fair(weights), prefix_caching=False))
        self.served: dict[str, float] = {}
        self.unserved: dict[str, set[int]] = {}  # sequences that have not started
        self.rows: dict[str, int] = {}  # of the last step
        self._max_rows = rows
        self._executor = NullExecutor(capacity)
        self._requests: list[tuple[str, int]] = []  # tenant, prompt tokens
        self._computed: list[int] = []  # prompt tokens that count already

    def add(self, tenant: str, prompt: int = 4, output: int = 30, count: int = 1) -> None:
        for _ in range(count):
            number = len(self._requests)
            self._requests.append((tenant, prompt))
            self._computed.append(0)
            self.unserved.setdefault(tenant, set()).add(number)
            self.served.setdefault(tenant, 0.0)
            self.scheduler.add(request(str(number), [number % 8] * prompt, output, tenant=tenant), 0.0)

    def keep_backlogged(self, tenant: str, lengths: list[tuple[int, int]]) -> None:
        """More requests than can start in a step, of these lengths in turn."""
        while len(self.unserved.get(tenant, ())) <= self._max_rows:
            self.add(tenant, *lengths[len(self._requests) % len(lengths)])

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            plan = self.scheduler.plan(0.0)
            self.rows = dict.fromkeys(self.served, 0)
            for chunk in plan.chunks:
                tenant, prompt = self._requests[chunk.sequence_id]
                computed = max(self._computed[chunk.sequence_id], min(chunk.start + chunk.length, prompt))
                fresh = computed - self._computed[chunk.sequence_id]
                self._computed[chunk.sequence_id] = computed
                self.served[tenant] += PROMPT_WEIGHT * fresh + OUTPUT_WEIGHT * chunk.sample
                self.unserved[tenant].discard(chunk.sequence_id)
                self.rows[tenant] += 1
            self.scheduler.commit(plan, self._executor.submit(plan).result(), 0.0)

    def stand(self, **rows: int) -> bool:
        """Whether tenants have so many rows, of which the flood had all, and lost each by a preemption."""
        return self.rows == rows and self.preemptions == self._max_rows - rows["flood"]

    @property
    def preemptions(self) -> int:
        return self.scheduler.stats().preemptions


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=3)


@given(
    flood=LENGTHS,
    other=LENGTHS,
    rows=st.integers(1, 6),
    budget=st.integers(1, 40),
    alone=st.integers(0, 60),
    trickle=st.integers(0, 8),
)
@example(flood=[(1, 1)], other=[(1, 30)], rows=4, budget=40, alone=150, trickle=25)  # banks, unless lifted
@settings(max_examples=60, deadline=None)
def test_the_service_gap_of_two_backlogged_tenants_stays_within_the_published_bound(
    flood: list[tuple[int, int]], other: list[tuple[int, int]], rows: int, budget: int, alone: int, trickle: int
) -> None:
    """VTC, theorem 4.4: whenever both are backlogged, at most 2·max(w_p·L, w_q·M), L the longest prompt, M the most
    tokens in the running batch; whatever they had before. alone: steps before the other one floods too, in which it
    sends a request every `trickle` steps."""
    tenants = Tenants(rows, budget)
    for number in range(alone):
        tenants.keep_backlogged("flood", flood)
        if trickle and number % trickle == 0:
            tenants.add("other", *other[number % len(other)])
        tenants.step()
    lengths = [*flood, *other]
    most = rows * max(prompt + output for prompt, output in lengths)
    bound = 2 * max(PROMPT_WEIGHT * max(prompt for prompt, _ in lengths), OUTPUT_WEIGHT * most)
    ahead = []
    for _ in range(200):
        tenants.keep_backlogged("flood", flood)
        tenants.keep_backlogged("other", other)
        ahead.append(tenants.served["flood"] - tenants.served["other"])
        assert max(ahead) - min(ahead) <= bound
        tenants.step()


@pytest.mark.parametrize("lengths", [[(20, 20), (20, 20)], [(10, 10), (35, 30)], [(35, 2), (2, 30)]])
@pytest.mark.parametrize("rows", [2, 3, 8])
@pytest.mark.parametrize("weights", [{}, {"a": 3.0}])
def test_floods_are_served_by_weight_and_do_not_preempt_each_other(
    rows: int, lengths: list[tuple[int, int]], weights: dict[str, float]
) -> None:
    tenants = Tenants(rows, weights=weights)
    for _ in range(150):
        for name, (prompt, output) in zip("ab", lengths, strict=True):
            tenants.add(name, prompt, output)
    while all(len(unserved) > rows for unserved in tenants.unserved.values()):
        tenants.step()
    assert tenants.preemptions == 0 or weights
    assert tenants.served["a"] / tenants.served["b"] == pytest.approx(weights.get("a", 1.0), rel=0.1)


def flooded(rows: int = 4, weights: dict[str, float] | None = None) -> Tenants:
    """A tenant has had all rows for a while, and asks for more."""
    tenants = Tenants(rows, weights=weights)
    tenants.add("flood", count=60)
    tenants.step(10)
    assert tenants.rows == {"flood": rows}
    return tenants


def test_a_light_tenant_has_a_row_in_the_next_step() -> None:
    tenants = flooded()
    tenants.add("light")
    tenants.step()
    assert tenants.stand(flood=3, light=1)
    tenants.step(3)  # what it has now does not let it fall behind the flood; it soon does
    tenants.add("light")
    tenants.step()
    assert tenants.stand(flood=2, light=2)


def test_the_prompt_of_a_light_tenant_goes_before_those_that_a_flood_runs() -> None:
    tenants = Tenants(rows=4, budget=20)
    tenants.add("flood", prompt=60, count=3)
    tenants.step()
    tenants.add("light", prompt=8)
    tenants.step()
    assert tenants.served == {"light": 8 + OUTPUT_WEIGHT, "flood": 20 + 12}
    assert tenants.preemptions == 0


def test_a_tenant_that_asks_for_more_than_its_share_waits_until_rows_come_free() -> None:
    tenants = flooded()
    tenants.add("second", count=3)
    tenants.step(8)
    assert tenants.stand(flood=4, second=0)
    while tenants.rows["second"] < 2:
        tenants.step()
    assert tenants.preemptions == 0


def test_shares_of_rows_follow_weights() -> None:
    tenants = flooded(weights={"heavy": 3.0})
    tenants.add("heavy", count=3)
    tenants.step(9)
    assert tenants.stand(flood=1, heavy=3)
    tenants.add("small")  # a fifth of four rows is less than one, and no tenant has more than its share
    tenants.step()
    assert tenants.preemptions == 3


def test_the_least_share_is_a_row() -> None:
    tenants = flooded(rows=2)
    tenants.add("second", count=3)
    tenants.add("light")
    tenants.step()
    assert tenants.stand(flood=1, second=0, light=1)
    tenants = flooded(rows=1)
    tenants.add("light")
    tenants.step()
    assert tenants.stand(flood=1, light=0), "no tenant loses its last row"


# -- counters ---------------------------------------------------------------------------------------------------


def arrive(policy: Fair, *tenants: str) -> None:
    """Have a request of each tenant begin to wait."""
    for number, tenant in enumerate(tenants):
        policy.arrived(view(100 + number, tenant=tenant))


def running(*served: tuple[str, int]) -> Fair:
    """Tenants that came together have been taken in this order, and served so much."""
    policy = Fair()
    arrive(policy, *(tenant for tenant, _ in served))
    for number, (tenant, prompt_tokens) in enumerate(served):
        one = view(number, tenant=tenant, running=True)
        policy.started(one)
        policy.served(one, prompt_tokens, 0, 0.0)
    return policy


def counter(policy: Fair, tenant: str) -> float:
    return policy.group_rank(tenant, 0.0)[0]


def test_a_tenant_that_comes_to_wait_is_lifted_to_the_least_of_those_that_wait() -> None:
    policy = running(("far", 900), ("near", 300), ("running", 100))
    arrive(policy, "near", "far", "new")
    assert counter(policy, "new") == 300, "running ones do not count"
    arrive(policy, "running")
    assert counter(policy, "running") == 300, "it asked for little, and has not banked the rest"
    policy.served(view(5, tenant="new"), 50, 0, 0.0)
    arrive(policy, "new")
    assert counter(policy, "new") == 350, "one of its own waits already"


def test_one_that_is_preempted_waits_again() -> None:
    policy = running(("a", 100), ("b", 400))
    arrive(policy, "b")
    policy.preempted(view(0, tenant="a"))
    assert counter(policy, "a") == 400


def test_on_a_tie_the_tenant_with_less_in_the_engine_goes_first() -> None:
    policy = Fair()
    arrive(policy, *["flood"] * 3, "light")
    assert policy.group_rank("light", 0.0) < policy.group_rank("flood", 0.0)


def test_within_a_tenant_by_arrival_and_the_furthest_ahead_is_preempted_first() -> None:
    policy = running(("a", 10), ("b", 0))
    ahead, behind = view(0, tenant="a", running=True), view(1, tenant="b", running=True, arrival=5)
    assert policy.rank(behind, 0.0) < policy.rank(ahead, 0.0)
    early, late = view(2, tenant="a", arrival=1), view(3, tenant="a", arrival=2)
    assert policy.rank(early, 0.0) < policy.rank(late, 0.0)


# -- tenants that are gone --------------------------------------------------------------------------------------


def visit(policy: Fair, tenant: str, work: int) -> None:
    """A request of the tenant's comes, is served and ends."""
    one = sequence(tenant=tenant)
    policy.arrived(SequenceView(one))
    policy.started(SequenceView(one))
    one.row = 0
    policy.served(SequenceView(one), work, 0, 0.0)
    policy.left(SequenceView(one))


def test_tenants_that_are_gone_are_forgotten_but_for_those_far_ahead() -> None:
    policy = Fair()
    arrive(policy, "waiting")
    visit(policy, "greedy", 10_000)
    for number in range(3 * MAX_IDLE_TENANTS):
        visit(policy, f"{number}", 1 + number % 50)
    assert len(policy._counters) <= MAX_IDLE_TENANTS + 2
    arrive(policy, "greedy", "0")
    assert counter(policy, "greedy") == 10_000, "what it had before still counts"
    assert counter(policy, "0") == counter(policy, "waiting"), "it begins with the least that waits"


def test_what_a_newcomer_is_lifted_to_is_never_forgotten() -> None:
    policy = Fair()
    for number in range(2 * MAX_IDLE_TENANTS):
        visit(policy, f"{number}", 2 * MAX_IDLE_TENANTS if number < MAX_IDLE_TENANTS else 1)
        last = policy._counters[f"{number}"]
    arrive(policy, "new")
    assert counter(policy, "new") == last > 0


# -- several engines --------------------------------------------------------------------------------------------


def test_a_tenant_that_was_served_elsewhere_waits_longer_here_and_usage_is_reported_once() -> None:
    tenants = Tenants(rows=2)
    tenants.add("a", 4, 4, count=4)
    tenants.add("b", 4, 4, count=4)
    assert tenants.scheduler.sync_tenant_usage({}) == {}
    tenants.scheduler.sync_tenant_usage({"interactive": {"a": 1000.0}, "gone": {"a": 5.0}})
    tenants.step(6)
    assert tenants.served["a"] == 0.0 < tenants.served["b"]
    assert tenants.scheduler.sync_tenant_usage({}) == {"interactive": {"b": tenants.served["b"]}}
    assert tenants.scheduler.sync_tenant_usage({}) == {}


def test_no_usage_is_counted_before_the_first_exchange() -> None:
    tenants = Tenants(rows=2)
    tenants.add("a")
    tenants.step(3)
    assert tenants.scheduler.sync_tenant_usage({}) == {}, "there was no one to share with"


def test_weights_count_elsewhere_too() -> None:
    policy = Fair({"heavy": 4.0})
    arrive(policy, "heavy", "light")
    policy.served_elsewhere({"heavy": 100.0, "light": 100.0})
    assert counter(policy, "heavy") < counter(policy, "light")


@pytest.mark.parametrize("tenants", [("alone", "new"), ("new", "alone")])
def test_idle_time_is_not_banked_against_a_tenant_that_was_served_elsewhere(tenants: tuple[str, str]) -> None:
    """Alone elsewhere for long, then both come here: they begin alike, in either order."""
    policy = Fair()
    for _ in range(100):
        policy.served_elsewhere({"alone": 1000.0, "rare": 1.0})
    arrive(policy, *tenants)
    assert counter(policy, "alone") == counter(policy, "new") > 0.0


def test_a_tenant_that_asks_for_little_elsewhere_banks_nothing_here() -> None:
    policy = Fair()
    arrive(policy, "busy")
    for _ in range(100):
        policy.served(view(0, tenant="busy"), 0, 10, 0.0)
        policy.served_elsewhere({"rare": 1.0})
    arrive(policy, "rare")
    assert policy.group_rank("rare", 0.0) >= policy.group_rank("busy", 0.0)


def test_names_that_are_served_elsewhere_are_forgotten() -> None:
    policy = Fair()
    for number in range(2 * MAX_IDLE_TENANTS):
        policy.served_elsewhere({f"t{number}": float(number)})
    assert len(policy._counters) <= MAX_IDLE_TENANTS + 1
    assert f"t{2 * MAX_IDLE_TENANTS - 1}" in policy._counters
