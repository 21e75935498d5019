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
from inflight.core.types.plan import BatchPlan, Capacity
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

    def add(self, tenant: str, prompt: int, output: int) -> None:
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

    def step(self) -> None:
        plan = self.scheduler.plan(0.0)
        assert isinstance(plan, BatchPlan)
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
def test_two_floods_do_not_push_each_other_out(rows: int, lengths: list[tuple[int, int]]) -> None:
    tenants = Tenants(rows)
    for _ in range(100):
        for name, (prompt, output) in zip("ab", lengths, strict=True):
            tenants.add(name, prompt, output)
    while all(len(unserved) > rows for unserved in tenants.unserved.values()):
        tenants.step()
    assert tenants.preemptions == 0
    assert tenants.served["a"] == pytest.approx(tenants.served["b"], rel=0.1)


def flooded(rows: int = 4, weights: dict[str, float] | None = None) -> Tenants:
    """A tenant has had all rows for a while, and asks for more."""
    tenants = Tenants(rows, weights=weights)
    for _ in range(60):
        tenants.add("flood", 4, 30)
    for _ in range(10):
        tenants.step()
    assert tenants.rows == {"flood": rows}
    return tenants


def test_a_light_tenant_has_a_row_in_the_next_step() -> None:
    tenants = flooded()
    tenants.add("light", 4, 30)
    tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 3, "light": 1}, 1)
    for _ in range(3):  # what it has now does not let it fall behind the flood; it soon does
        tenants.step()
    tenants.add("light", 4, 30)
    tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 2, "light": 2}, 2)


def test_who_asks_for_more_than_its_share_waits_until_rows_come_free() -> None:
    tenants = flooded()
    for _ in range(3):
        tenants.add("second", 4, 30)
    for _ in range(8):
        tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 4, "second": 0}, 0)
    while tenants.rows["second"] < 2:
        tenants.step()
    assert tenants.preemptions == 0


def test_shares_of_rows_follow_weights() -> None:
    tenants = flooded(weights={"heavy": 3.0})
    for _ in range(3):
        tenants.add("heavy", 4, 30)
    for _ in range(9):
        tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 1, "heavy": 3}, 3)
    tenants.add("small", 4, 30)  # a fifth of four rows is less than one, and no tenant has more than its share
    tenants.step()
    assert tenants.preemptions == 3


def test_the_least_share_is_a_row() -> None:
    tenants = flooded(rows=2)
    for _ in range(3):
        tenants.add("second", 4, 30)
    tenants.add("light", 4, 30)
    tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 1, "second": 0, "light": 1}, 1)


def test_a_tenant_that_has_all_rows_at_their_end_is_not_pushed_out_of_its_last() -> None:
    tenants = flooded(rows=1)
    tenants.add("light", 4, 30)
    tenants.step()
    assert (tenants.rows, tenants.preemptions) == ({"flood": 1, "light": 0}, 0)


@pytest.mark.parametrize("weights", [{}, {"a": 3.0}])
def test_tenants_are_served_by_weight(weights: dict[str, float]) -> None:
    tenants = Tenants(4, 20, weights)
    for _ in range(400):
        tenants.add("a", 5, 8)
        tenants.add("b", 5, 8)
    for _ in range(300):
        tenants.step()
    assert tenants.served["a"] / tenants.served["b"] == pytest.approx(weights.get("a", 1.0), rel=0.1)


# -- counters ---------------------------------------------------------------------------------------------------


def waiting(policy: Fair, number: int, tenant: str) -> None:
    policy.arrived(view(number, tenant=tenant))


def taken(policy: Fair, number: int, tenant: str, prompt_tokens: int = 0) -> None:
    running = view(number, tenant=tenant, running=True)
    policy.started(running)
    policy.served(running, prompt_tokens, 0, 0.0)


def running(*served: tuple[str, int]) -> Fair:
    """Tenants that came together have been taken in this order, and served so much."""
    policy = Fair()
    for number, (tenant, _) in enumerate(served):
        waiting(policy, number, tenant)
    for number, (tenant, prompt_tokens) in enumerate(served):
        taken(policy, number, tenant, prompt_tokens)
    return policy


def counter(policy: Fair, tenant: str) -> float:
    return float(policy.group_rank(tenant, 0.0)[0])


def test_a_tenant_that_comes_to_wait_is_lifted_to_the_least_of_those_that_wait() -> None:
    policy = running(("far", 900), ("near", 300), ("running", 100))
    waiting(policy, 3, "near")
    waiting(policy, 4, "far")
    waiting(policy, 5, "new")
    assert counter(policy, "new") == 300, "running ones do not count"
    waiting(policy, 6, "running")
    assert counter(policy, "running") == 300, "it asked for little, and has not banked the rest"
    policy.served(view(5, tenant="new"), 50, 0, 0.0)
    waiting(policy, 7, "new")
    assert counter(policy, "new") == 350, "one of its own waits already"


def test_while_none_waits_the_last_taken_tenant_is_the_measure() -> None:
    policy = running(("first", 900), ("last", 300))
    waiting(policy, 2, "new")
    assert counter(policy, "new") == 300
    policy.left(view(2, tenant="new"))
    policy.left(view(1, tenant="last", running=True))
    waiting(policy, 3, "first")
    assert counter(policy, "first") == 900, "no counter is ever lowered"


def test_one_that_is_preempted_waits_again() -> None:
    policy = running(("a", 100), ("b", 400))
    waiting(policy, 2, "b")
    policy.preempted(view(0, tenant="a"))
    assert counter(policy, "a") == 400


def test_on_a_tie_who_has_less_in_the_engine_goes_first() -> None:
    policy = Fair()
    for number in range(3):
        waiting(policy, number, "flood")
    waiting(policy, 3, "light")
    assert policy.group_rank("light", 0.0) < policy.group_rank("flood", 0.0)


def test_within_a_tenant_by_arrival_and_the_furthest_ahead_is_preempted_first() -> None:
    policy = Fair()
    ahead, behind = view(0, tenant="a", running=True), view(1, tenant="b", running=True, arrival=5)
    for one in (ahead, behind):
        policy.arrived(one)
    policy.served(ahead, 10, 0, 0.0)
    assert policy.rank(behind, 0.0) < policy.rank(ahead, 0.0)
    early, late = view(2, tenant="a", arrival=1), view(3, tenant="a", arrival=2)
    assert policy.rank(early, 0.0) < policy.rank(late, 0.0)


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
    waiting = sequence(tenant="waiting")
    policy.arrived(SequenceView(waiting))
    visit(policy, "greedy", 10_000)
    for number in range(3 * MAX_IDLE_TENANTS):
        visit(policy, f"{number}", 1 + number % 50)
    assert len(policy._counters) <= MAX_IDLE_TENANTS + 2
    for tenant in ("greedy", "0"):
        policy.arrived(SequenceView(sequence(tenant=tenant)))
    assert policy.group_rank("greedy", 0.0)[0] == 10_000, "what it had before still counts"
    assert policy.group_rank("0", 0.0) == policy.group_rank("waiting", 0.0), (
        "who was forgotten begins with the least that waits"
    )


def test_what_a_newcomer_is_lifted_to_is_never_forgotten() -> None:
    policy = Fair()
    for number in range(2 * MAX_IDLE_TENANTS):
        visit(policy, f"{number}", 2 * MAX_IDLE_TENANTS if number < MAX_IDLE_TENANTS else 1)
        last = policy._counters[f"{number}"]
    policy.arrived(SequenceView(sequence(tenant="new")))
    assert policy.group_rank("new", 0.0)[0] == last > 0


def test_who_was_served_elsewhere_waits_longer_here() -> None:
    tenants = Tenants(rows=2)
    for _ in range(4):
        tenants.add("a", 4, 4)
        tenants.add("b", 4, 4)
    assert tenants.scheduler.sync_tenant_usage({}) == {}
    tenants.scheduler.sync_tenant_usage({"interactive": {"a": 1000.0}, "gone": {"a": 5.0}})
    for _ in range(6):
        tenants.step()
    assert tenants.served["a"] == 0.0 < tenants.served["b"]
    given = tenants.scheduler.sync_tenant_usage({})
    assert given == {"interactive": {"b": tenants.served["b"]}}, "usage is reported once"
    assert tenants.scheduler.sync_tenant_usage({}) == {}


def test_weights_count_elsewhere_too() -> None:
    policy = Fair({"heavy": 4.0})
    for number, tenant in enumerate(("heavy", "light")):
        policy.arrived(view(number, tenant=tenant))
    policy.served_elsewhere({"heavy": 100.0, "light": 100.0})
    assert policy.group_rank("heavy", 0.0) < policy.group_rank("light", 0.0)


def test_idle_time_is_not_banked_against_who_was_served_elsewhere() -> None:
    """Alone elsewhere for long, then both come here: they begin alike, in either order."""
    for first, second in (("alone", "new"), ("new", "alone")):
        policy = Fair()
        for _ in range(100):
            policy.served_elsewhere({"alone": 1000.0, "rare": 1.0})
        for number, tenant in enumerate((first, second)):
            policy.arrived(view(number, tenant=tenant))
        counters = [policy.group_rank(tenant, 0.0)[0] for tenant in (first, second)]
        assert counters[0] == counters[1] > 0.0


def test_who_asks_for_little_elsewhere_banks_nothing_here() -> None:
    policy = Fair()
    policy.arrived(view(0, tenant="busy"))
    for _ in range(100):
        policy.served(view(0, tenant="busy"), 0, 10, 0.0)
        policy.served_elsewhere({"rare": 1.0})
    policy.arrived(view(1, tenant="rare"))
    assert policy.group_rank("rare", 0.0) >= policy.group_rank("busy", 0.0)


def test_names_that_are_served_elsewhere_are_forgotten() -> None:
    policy = Fair()
    for number in range(2 * MAX_IDLE_TENANTS):
        policy.served_elsewhere({f"t{number}": float(number)})
    assert len(policy._counters) <= MAX_IDLE_TENANTS + 1
    assert f"t{2 * MAX_IDLE_TENANTS - 1}" in policy._counters


def test_no_usage_is_counted_before_the_first_exchange() -> None:
    tenants = Tenants(rows=2)
    tenants.add("a", 4, 4)
    for _ in range(3):
        tenants.step()
    assert tenants.scheduler.sync_tenant_usage({}) == {}, "there was no one to share with"
