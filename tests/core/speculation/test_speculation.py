"""Forced drafts: they bring several tokens a step, and keep the ITL targets of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from core.builders import view
from inflight.core.estimation.latency import LatencyModel
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Allotment, DraftCandidate, ForcedDrafts, Speculation
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Chunk
from inflight.core.types.request import SLO

RUN = tuple(range(10, 18))
DECODES = tuple(Chunk(number, number, 20, 1, (), 1) for number in range(3))


def learnt(seconds: float) -> LatencyModel:
    """Each token takes so long."""
    latency = LatencyModel()
    for tokens in range(1, 40):
        held = features(BatchPlan(0, (Chunk(0, 0, 0, tokens, (), 1),)))
        latency.observe(held, tokens * seconds)
    return latency


def allotted(forced: ForcedDrafts, *rooms: int, budget: int = 99) -> list[Allotment]:
    return forced.allot(0, DECODES, [DraftCandidate(view(number), room) for number, room in enumerate(rooms)], budget)


def test_forced_drafts_are_as_many_as_room_and_budget_allow() -> None:
    forced = ForcedDrafts(LatencyModel())
    assert not forced.due(0)
    forced.force(0, RUN)
    forced.force(1, RUN[:2])
    assert set(forced.due(0) or ()) == {0, 1}
    assert allotted(forced, 5, 5) == [(0, 5, RUN[:5]), (1, 2, RUN[:2])]
    assert allotted(forced, 5, 5, budget=6) == [(0, 5, RUN[:5]), (1, 1, RUN[:1])]
    assert allotted(forced, 0, 5) == [(1, 2, RUN[:2])]


def test_forced_tokens_hold_until_the_next_report_or_the_end() -> None:
    forced = ForcedDrafts(LatencyModel())
    for number in range(3):
        forced.force(number, RUN)
    forced.force(0, ())
    forced.finished(view(1))
    assert set(forced.due(0) or ()) == {2}


def test_only_a_run_that_is_worth_a_step_without_a_token_is_held_back_for() -> None:
    forced = ForcedDrafts(LatencyModel())
    forced.force(0, RUN[:2])
    forced.force(1, RUN[:3])
    assert forced.hold_back(0, [view(0), view(1)], 2) == {1}


def test_a_step_keeps_the_targets_of_all_that_run() -> None:
    forced = ForcedDrafts(learnt(0.01))
    forced.force(0, RUN)
    assert allotted(forced, 9) == [(0, 8, RUN)]
    forced.began(view(2, slo=SLO(itl=0.075)))  # of which three decodes take 0.03
    ((_, count, _),) = allotted(forced, 9)
    assert 1 <= count <= 4
    forced.finished(view(2))
    assert allotted(forced, 9) == [(0, 8, RUN)]
    unlearnt = ForcedDrafts(LatencyModel())
    unlearnt.force(0, RUN)
    unlearnt.began(view(2, slo=SLO(itl=0.075)))
    assert allotted(unlearnt, 9) == []


def test_a_tpot_target_of_a_sequence_without_drafts_bounds_the_step() -> None:
    """Also where it has forced tokens, of which the step has none. Three decodes take 0.03."""

    def counts(*rooms: int, itl: float | None = None) -> dict[int, int]:
        forced = ForcedDrafts(learnt(0.01))
        for number in range(2):
            forced.force(number, RUN)
        forced.began(view(1, slo=SLO(tpot=0.055)))
        forced.began(view(2, slo=SLO(itl=itl)))
        return {number: count for number, count, _ in allotted(forced, *rooms)}

    assert counts(9, 9) == {0: 8, 1: 8}, "its drafts bring it several tokens"
    alone = counts(9)
    assert alone == counts(9, 0) and 1 <= alone[0] <= 2
    assert counts(9, 9, itl=0.1) == alone, "none are left for it"


class Others:
    """Speculation that gives each of its candidates two drafts."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.budget = 0

    def due(self, step: int) -> set[int]:
        return {0, 1}

    def hold_back(self, step: int, views: Sequence[SequenceView], running: int) -> set[int]:
        return {view.number for view in views}

    def allot(
        self, step: int, chunks: Sequence[Chunk], candidates: Sequence[DraftCandidate], budget: int
    ) -> list[Allotment]:
        self.asked, self.budget = [one.view.number for one in candidates], budget
        return [Allotment(number, 2, (7, 7)) for number in self.asked]


def test_who_has_no_forced_ones_is_drafted_for_by_others_in_turn_and_within_what_is_left() -> None:
    others = Others()
    forced = ForcedDrafts(LatencyModel(), cast(Speculation, others))
    assert forced.due(0) == {0, 1}
    forced.force(1, RUN[:2])
    forced.force(2, RUN[:3])
    assert forced.due(1) == {0, 1, 2}
    assert forced.hold_back(1, [view(number) for number in range(3)], 3) == {0, 2}
    assert allotted(forced, 5, 5, 5, budget=9) == [(1, 2, RUN[:2]), (2, 3, RUN[:3]), (0, 2, (7, 7))]
    assert (others.asked, others.budget) == ([0], 4)
    assert allotted(forced, 5, 5, 5, budget=5) == [(1, 2, RUN[:2]), (2, 3, RUN[:3])]


class Empty(Speculation):
    """A speculation that counts as false, as a record's without drafts does; its steps wait all the same."""

    def __bool__(self) -> bool:
        return False

    def waits(self, step: int) -> bool:
        return True


def test_another_speculation_is_asked_though_it_counts_as_false() -> None:
    assert ForcedDrafts(LatencyModel(), Empty()).waits(3)
    assert not ForcedDrafts(LatencyModel()).waits(3)
