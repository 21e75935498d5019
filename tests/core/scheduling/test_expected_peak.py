"""Expected peak: what a batch is expected to need, beside slow forms of it, and who joins by it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Quantiles
from inflight.core.kv.manager import KVCacheManager
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import Lane, Lanes, LaneSettings
from inflight.core.request_timings import StepTime
from inflight.core.scheduling.expected_peak import POINTS_PER_OCTAVE, ExpectedPeak, _moments, _survival
from inflight.core.scheduling.running import Running, SchedulerCounts, SwapRule
from inflight.core.sequence import Sequence
from inflight.core.types.events import Finish
from inflight.core.types.length_distribution import LengthDistribution, bin_of, of_weights, point, uniform
from inflight.core.types.plan import Capacity

from ..builders import request, sequence
from ..harness import Harness, Setup

BLOCK = 4


def memory_of(num_blocks: int = 1000) -> KVCacheManager:
    return KVCacheManager(Capacity(num_blocks, BLOCK, 8, 2000, 8), prefix_caching=False)


def running(memory: KVCacheManager, number: int, prompt: int, output: int, lengths: LengthDistribution) -> Sequence:
    one = waiting(number, prompt, lengths)
    one.output, one.num_tokens = [1] * output, prompt + output
    assert memory.admit(one, 0)
    return one


def waiting(number: int, prompt: int, lengths: LengthDistribution) -> Sequence:
    one = sequence(number, prompt=[number % 8] * prompt, max_tokens=1000)
    one.lengths = lengths
    return one


def expected_peak(memory: KVCacheManager, sequences: list[Sequence]) -> tuple[ExpectedPeak, Lane]:
    latency, time = LatencyModel(), StepTime()
    settings = [LaneSettings(name="interactive", policy=Fcfs())]
    lanes = Lanes(settings, 8, 8, memory.num_cached_tokens, time, latency, 0.0)
    running = Running(memory, lanes, time, SchedulerCounts(), SwapRule("recompute", latency, 0.0), 8, 0.0)
    running.sequences = sequences
    (lane,) = lanes.all()
    return ExpectedPeak(memory, lanes, running, Quantiles()), lane


def spare_blocks(memory: KVCacheManager, newcomer: Sequence, sequences: list[Sequence]) -> int:
    """Return what a newcomer must leave beside these running ones."""
    peak, lane = expected_peak(memory, sequences)
    return peak.spare_blocks(newcomer, lane)


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def of_lengths(lengths: list[int]) -> LengthDistribution:
    weights = [0.0] * (bin_of(max(lengths)) + 1)
    for length in lengths:
        weights[bin_of(length)] += 1.0
    return of_weights(weights, 1000)


LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=20).map(of_lengths)


@given(lengths=LENGTHS, output=st.integers(0, 150))
def test_survival_is_the_conditional_probability_of_one_token_more_than_the_moment_before(
    lengths: LengthDistribution, output: int
) -> None:
    moments = _moments(BLOCK, 1000)
    if output >= lengths.end:
        return
    found = _survival(lengths, output, moments)
    slowly = [lengths.exceeds(output + before + 1) / lengths.exceeds(output) for before in (0, *moments[:-1])]
    assert found == pytest.approx([one for one in slowly if one > 0])


BATCH = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30), st.integers(1, 300)), min_size=1, max_size=6)


@given(batch=BATCH, newcomer=st.tuples(st.integers(1, 60), st.integers(1, 300)))
def test_with_known_lengths_it_is_the_peak_of_the_batch(
    batch: list[tuple[int, int, int]], newcomer: tuple[int, int]
) -> None:
    """Up to the moments between which it does not look: it may be higher, and is never lower.

    Args:
        batch: Prompt, output so far and output to come, of each running sequence.
        newcomer: Prompt and output.
    """
    memory = memory_of()
    sequences = [
        running(memory, number, prompt, output, point(output + more))
        for number, (prompt, output, more) in enumerate(batch)
    ]
    one = waiting(99, newcomer[0], point(newcomer[1]))
    spare = spare_blocks(memory, one, sequences)
    grown = [(prompt + output, more) for prompt, output, more in batch] + [(newcomer[0], newcomer[1])]
    now = sum(blocks(tokens) for tokens, _ in grown)
    peak = max(sum(blocks(tokens + t) for tokens, more in grown if more > t) for t in range(301))
    later = max(1, *(more for _, more in grown))
    slack = len(grown) * (1 + later / BLOCK / POINTS_PER_OCTAVE)
    assert peak - now <= max(0, spare) and spare <= peak - now + slack


def test_a_length_of_which_nothing_is_known_claims_nothing() -> None:
    """Whatever `max_tokens` says."""
    memory = memory_of()
    sequences = [running(memory, number, 10, 3, uniform(1, 1000)) for number in range(3)]
    assert spare_blocks(memory, waiting(9, 5, uniform(1, 2000)), sequences) <= 0


def test_what_is_likely_to_end_makes_room() -> None:
    memory = memory_of()
    short, long = point(4), point(400)
    found = []
    for lengths in (short, long):
        sequences = [running(memory, 0, 200, 3, lengths)]
        found.append(spare_blocks(memory, waiting(9, 5, point(200)), sequences))
        memory.free(sequences[0])
    assert found[0] <= blocks(205) - blocks(5) < found[1]


def test_the_peak_is_of_the_batch_as_it_is_now() -> None:
    """Also where the first of it sits out, as under `slack`, where another's prediction changes, and where one ends."""
    memory = memory_of()
    sequences = [running(memory, number, 10, 3, point(100)) for number in range(3)]
    peak, lane = expected_peak(memory, sequences)
    newcomer = waiting(9, 5, point(50))

    def check() -> int:
        spare = peak.spare_blocks(newcomer, lane)
        assert spare == spare_blocks(memory, newcomer, sequences)
        return spare

    before = check()
    for _ in range(40):  # all but the first grow
        for one in sequences[1:]:
            one.output.append(1)
            one.num_tokens += 1
            assert memory.allocate(one, one.num_tokens) is not None
    assert check() < before
    sequences[1].lengths = point(300)
    grown = check()
    sequences[1].finish = Finish("length")
    assert check() < grown


def requests(number: int, output: int):  # type: ignore[no-untyped-def]
    return [request(f"r{index}", [index % 2, index // 2 % 2, 1] * 2, output) for index in range(number)]


@pytest.mark.parametrize("allocation", ["paged", "expected-peak"])
def test_no_request_is_preempted_that_was_expected_to_outgrow_memory(allocation: str) -> None:
    setup = Setup(num_blocks=20, block_size=2, max_rows=8, token_budget=8, allocation=allocation, oracle=True)  # type: ignore[arg-type]
    harness = Harness(setup, *requests(12, 14))
    harness.drain()
    assert (harness.scheduler.stats().preemptions > 0) == (allocation == "paged")
