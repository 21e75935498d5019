"""The invariants of docs/invariants.md under everything that can happen, in any order."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from inflight.core.request import Request
from inflight.core.sampling import SamplingParams

from .harness import Harness, Setup, outputs_alone

SETUPS = st.builds(
    Setup,
    num_blocks=st.integers(3, 12),
    block_size=st.integers(1, 4),
    max_rows=st.integers(1, 4),
    token_budget=st.integers(1, 9),
    prefix_caching=st.booleans(),
    watermark=st.sampled_from([0.0, 0.1, 0.5]),
    max_model_len=st.sampled_from([8, 24]),
    depth=st.integers(1, 2),
)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 12)))
    return SamplingParams(
        n=draw(st.integers(1, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(4, max_tokens or 4))),
        stop=draw(st.sampled_from([(), (), ("ab",), ("c", "dd")])),
        stop_token_ids=draw(st.sampled_from([(), (), (2,), (3, 4)])),
        ignore_eos=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn, max_prompt: int = 10) -> Request:
    """Prompts of two letters, so that prefixes collide."""
    return Request(
        request_id="",
        prompt_token_ids=tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_prompt))),
        params=draw(sampling_params()),
        seed=draw(st.integers(0, 2)),
        cache_salt=draw(st.sampled_from(["", "", "tenant"])),
        forced_output_tokens=draw(st.one_of(st.none(), st.none(), st.integers(1, 14))),
    )


class SchedulerMachine(RuleBasedStateMachine):
    harness: Harness

    @initialize(setup=SETUPS, fragile=st.booleans())
    def start(self, setup: Setup, fragile: bool) -> None:
        """fragile: steps break now and then."""
        self.harness = Harness(setup)
        self.fragile = fragile
        self.count = 0

    @rule(request=requests(), earlier=st.integers(0, 4), times=st.integers(1, 2))
    def add(self, request: Request, earlier: int, times: int) -> None:
        """Twins come together; `earlier` moves a request ahead of others in the queue."""
        harness = self.harness
        for _ in range(times):
            request = replace(request, request_id=f"r{self.count}", arrival=harness.now - earlier)
            self.count += 1
            setup, tokens = harness.setup, len(request.prompt_token_ids)
            if tokens >= setup.max_model_len or -(-tokens // setup.block_size) > setup.num_blocks:
                sentence = harness.refuse(request)
                assert str(tokens) in sentence or str(setup.num_blocks) in sentence
            else:
                harness.add(request)

    @precondition(lambda self: self.harness.alive)
    @rule(data=st.data(), again=st.booleans())
    def abort(self, data: st.DataObject, again: bool) -> None:
        """In any state; the id may be used again at once, while the old one's tokens are still in flight."""
        name = data.draw(st.sampled_from(list(self.harness.alive)))
        request = self.harness.alive[name].request
        self.harness.abort(name)
        assert self.harness.abort(name) == []
        if again:
            self.harness.add(replace(request, arrival=self.harness.now))

    @precondition(lambda self: self.harness.alive)
    @rule(data=st.data())
    def add_twice(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.harness.alive)))
        assert repr(name) in self.harness.refuse(self.harness.alive[name].request)

    @precondition(lambda self: len(self.harness.flights) < self.harness.setup.depth)
    @rule(fail=st.sampled_from([False, False, True]))
    def plan(self, fail: bool) -> None:
        self.harness.plan(fail and self.fragile)

    @precondition(lambda self: self.harness.flights)
    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @rule(rounds=st.integers(1, 4), fail=st.sampled_from([False, False, True]))
    def steps(self, rounds: int, fail: bool) -> None:
        for _ in range(rounds):
            self.harness.step()
        if fail and self.fragile:
            self.harness.step(fail)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.harness.now += seconds

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.drain()
        for client in harness.clients:
            check_against_alone(client, harness.setup)
        check_ledgers(harness)
        repeated = Harness(harness.setup)
        repeat(harness.log, repeated)
        assert repeated.plans == harness.plans


def check_against_alone(client, setup: Setup) -> None:  # type: ignore[no-untyped-def]
    """Invariants 7, 8 and 10: the same tokens as alone, or their beginning where something ended them early."""
    alone, ends = outputs_alone(client.request, setup.max_model_len)
    for tokens, finish, expected, end in zip(client.tokens, client.ended.finishes, alone, ends, strict=True):
        if finish.reason in ("abort", "error"):
            assert tokens == expected[: len(tokens)]
        elif finish.detail is not None:
            assert finish.reason == "length"
            known = len(client.request.prompt_token_ids) + len(tokens)
            assert known == setup.num_blocks * setup.block_size + 1
            assert tokens == expected[: len(tokens)]
        else:
            assert (tokens, finish) == (expected, end)


def check_ledgers(harness: Harness) -> None:
    """Cached and recomputed tokens, where the plans say how many there were."""
    numbers = iter(range(10**6))
    for client in harness.clients:
        own = [next(numbers) for _ in range(client.request.params.n)]
        assert client.ended is not None
        if len(own) > 1 or client.ended.finishes[0].reason in ("abort", "error"):
            continue
        compute, timings = harness.compute[own[0]], client.ended.timings
        assert timings.cached_tokens == compute.first_start
        assert timings.recomputed_tokens == compute.recomputed


def repeat(log, harness: Harness) -> None:  # type: ignore[no-untyped-def]
    """Invariant 6."""
    for verb, *arguments, now in log:
        harness.now = now
        getattr(harness, verb)(*arguments)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
