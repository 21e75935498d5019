"""The cost of a wrong choice of the simulator, and how alike two orders of settings are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.decision import Texts, distinct, drafts_in, settings
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import Summary, Window, summarize
from inflight.planning.decision import Decision, EvaluatedConfig, ranks, take_turns
from inflight.planning.engine_config import EngineConfig
from inflight.planning.meter import Spent
from inflight.planning.simulation import Trial
from inflight.records.schema import RecordError
from inflight.simulate.drafting import Acceptance
from inflight.workload.workload import Entry, Workload

from .builders import machine


def summary(kept: int) -> Summary:
    """Summarize ten requests within ten seconds, so many of which meet their target."""
    found = [
        Observation(
            str(number),
            intended=float(number),
            ended=number + 1.0,
            first_token=number + (0.1 if number < kept else 0.9),
            last_token=number + 1.0,
            longest_output=2,
            targets=Targets(ttft=0.5),
        )
        for number in range(10)
    ]
    return summarize(found, Window(0.0, 10.0))


def tried(rows: int, simulated: int, *measured: int) -> EvaluatedConfig:
    trial = Trial(1.0, 1, summary(simulated), {}, {}, Spent(0.0, 0.0, {}), 0, {})
    config = EngineConfig(max_num_seqs=rows, max_num_batched_tokens=64)
    return EvaluatedConfig(config, trial, tuple(summary(kept) for kept in measured))


def test_the_loss_is_that_of_the_medians() -> None:
    chosen, other = tried(1, 9, 5, 8, 10), tried(2, 8, 9, 10, 2)
    decision = Decision(chosen, [chosen, other])
    assert decision.best is other
    assert decision.loss == pytest.approx(1 - 8 / 9)


def test_no_loss_where_the_choice_is_as_good() -> None:
    chosen, other = tried(1, 9, 8), tried(2, 8, 8)
    assert Decision(chosen, [other, chosen]).best is chosen
    assert Decision(chosen, [other, chosen]).loss == 0.0
    nothing = tried(1, 0, 0)
    assert Decision(nothing, [nothing]).loss == 0.0


def test_orders_are_compared() -> None:
    alike = [tried(rows, rows, rows) for rows in (1, 4, 8)]
    assert Decision(alike[-1], alike).rank_correlation == pytest.approx(1.0)
    against = [tried(rows, rows, 10 - rows) for rows in (1, 4, 8)]
    assert Decision(against[-1], against).rank_correlation == pytest.approx(-1.0)
    tied = [tried(rows, 10, rows) for rows in (1, 4, 8)]
    assert Decision(tied[0], tied).rank_correlation is None


def test_settings_whose_spreads_overlap_are_not_ranked() -> None:
    low, wide, middle, high = tried(1, 1, 1, 2), tried(2, 2, 2, 9), tried(3, 3, 4, 5), tried(4, 4, 6, 8)
    assert distinct([wide, high, low, middle]) == [low, middle, high]
    assert distinct([high, high]) == [high]


def test_eight_settings_differ_and_prompts_are_equal_where_their_contents_are() -> None:
    assert len({repr(one) for one in settings().values()}) == 8
    entries = tuple(Entry(0.0, 12, 3, prefix=(5, content), block_size=4) for content in (7, 7, 8))
    made = [one.prompt for one in Texts(range(100)).filled(Workload(entries, ""), 0).entries]
    prompts = [one for one in made if isinstance(one, tuple)]
    assert [len(one) for one in prompts] == [12] * 3 and len({one[8:] for one in prompts}) == 3
    assert prompts[0][:8] == prompts[1][:8] != prompts[2][:8] and prompts[0][:4] == prompts[2][:4]


def test_a_run_without_drafts_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="a run at 2 requests/s has drafts at 0 decodes, too few"):
        drafts_in([], machine(), "a run at 2 requests/s")
    monkeypatch.setattr("benchmarks.decision.acceptance_of", lambda steps, source: Acceptance((0.5,), source))
    with pytest.raises(RecordError, match="the time of a step with drafts is not known"):
        drafts_in([], machine(), "a run at 2 requests/s")


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_ranks_share_their_sum(values: list[int]) -> None:
    found = ranks([float(value) for value in values])
    assert sum(found) == pytest.approx(len(values) * (len(values) + 1) / 2)
    assert all(
        (a < b) == (x < y) for a, x in zip(found, values, strict=True) for b, y in zip(found, values, strict=True)
    )


def test_settings_take_turns() -> None:
    ran: list[int] = []

    def run(config: EngineConfig) -> Summary:
        ran.append(config.max_num_seqs)
        return summary(5)

    reported: list[str] = []
    found = take_turns([tried(1, 9), tried(2, 9)], run, 3, reported.append)
    assert ran == [1, 2] * 3 and [len(one.measured) for one in found] == [3, 3]
    assert "run 3 of 3" in reported[-2] and "simulated 0.9/s" in reported[-1]
