"""Drafts where they pay, and nothing lost where they do not: on a clock of their own, with answers that are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from statistics import fmean

import pytest
from breadth import usual_of

from inflight.core.speculation.speculation import ExecutorDrafter
from inflight.core.types.plan import BatchPlan

from .rig import Device, Foreseeing, Rig, Right

Load = Callable[[Rig], float]


def never(sequence: int, place: int) -> bool:
    return False


def often(share: float) -> Right:
    return lambda sequence, place: random.Random(sequence * 100_003 + place).random() < share


def memory_bound(tokens: int) -> float:
    return 0.01 + 0.00002 * tokens


def compute_bound(tokens: int) -> float:
    return 0.001 + 0.004 * tokens


def between(tokens: int) -> float:
    return 0.01 + 0.0005 * tokens


def answers(rows: int, output: int) -> Load:
    def run(rig: Rig) -> float:
        rig.add(rows, output)
        return rig.until_done()

    return run


def swinging(rig: Rig) -> float:
    """A row or two, and every few seconds 64 of them."""
    rig.add(1, 3000)
    while rig.now < 40:
        if rig.scheduler.stats().running <= 1 and int(rig.now) % 5 == 4:
            rig.add(63, 60)
        if rig.scheduler.idle:
            rig.add(1, 3000)
        rig.step()
    return rig.until_done()


def drafts_of(plan: BatchPlan) -> int:
    return sum(chunk.num_drafts for chunk in plan.chunks)


def both(load: Load, device: Device, drafter: Foreseeing | ExecutorDrafter, depth: int = 1) -> tuple[float, Rig]:
    """Seconds with drafts against those without, and the engine that had them."""
    drafted = Rig(device, drafter, depth=depth, between=0.0005)
    return load(drafted) / load(Rig(device, depth=depth, between=0.0005)), drafted


# -- it pays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("rows", [1, 32])
def test_right_drafts_bring_answers_sooner(rows: int, depth: int) -> None:
    share, rig = both(answers(rows, 300), Device(memory_bound), Foreseeing(often(0.8)), depth)
    assert share < 0.45
    stats = rig.scheduler.stats().speculation
    assert stats is not None and stats.won_seconds > 10 * stats.lost_seconds


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_of_the_executor_bring_answers_sooner(depth: int) -> None:
    device = Device(memory_bound, often(0.8), pass_seconds=0.001)
    share, rig = both(answers(8, 300), device, ExecutorDrafter("model", 5), depth)
    assert share < 0.65
    assert all(not chunk.draft_token_ids for plan in rig.plans for chunk in plan.chunks)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_an_executor_that_has_to_catch_up_first_does_not_count_as_wrong(share: float) -> None:
    """In a crowd drafts do not pay, and the executor falls behind; later few sequences are left, and lack much."""

    def load(rig: Rig) -> float:
        for number in range(40):
            rig.add(1, 1500 if number < 4 else 400, 64)
            rig.step()
        while rig.ended < 36:
            rig.step()
        crowd = rig.now
        return rig.until_done() - crowd

    def crowded(tokens: int) -> float:
        return 0.01 + 0.0005 * max(0, tokens - 12)

    device = Device(crowded, often(share), pass_seconds=0.001, catches_up=160)
    drafted = Rig(device, ExecutorDrafter("e", 5), between=0.0005)
    seconds = load(drafted)
    assert device.lacked and seconds < 0.85 * load(Rig(device, between=0.0005))


def test_seldom_right_drafts_are_few_and_often_right_ones_are_many() -> None:
    def mean(share: float) -> float:
        _, rig = both(answers(4, 300), Device(between), Foreseeing(often(share), sure=share))
        drafts = [count for count in rig.drafts() if count]
        return sum(drafts) / len(drafts)

    assert mean(0.45) < 2 < 3 < mean(0.9)


def test_sequences_with_right_drafts_have_most_of_them() -> None:
    """Every second sequence's drafts are right."""
    rig = Rig(Device(between), Foreseeing(lambda sequence, place: sequence % 2 == 0))
    rig.add(4, 400)
    rig.until_done()
    drafted = [0, 0]
    for plan in rig.plans:
        for chunk in plan.chunks:
            drafted[chunk.sequence_id % 2] += chunk.num_drafts
    assert drafted[0] > 5 * drafted[1]


def test_what_was_refused_for_long_is_tried_again() -> None:
    """The first answers' drafts are wrong, and those that come later right."""
    drafter = Foreseeing(lambda sequence, place: sequence >= 4)
    rig = Rig(Device(memory_bound), drafter)
    for _ in range(8):
        rig.add(1, 300)
        rig.until_done()
    stats = rig.scheduler.stats().speculation
    assert stats is not None and sum(stats.accepted) > 700


# -- it costs nothing -------------------------------------------------------------------------------------------


LOADS: dict[str, Load] = {"one": answers(1, 3000), "many": answers(16, 1500), "swinging": swinging}


@pytest.mark.parametrize(
    ("name", "seconds", "depth"),
    usual_of(
        product(LOADS, (memory_bound, between, compute_bound), (1, 2)),
        *[("one", memory_bound, 1), ("many", between, 2), ("swinging", compute_bound, 1), ("swinging", between, 2)],
    ),
)
def test_drafts_that_are_never_right_cost_less_than_half_a_hundredth(
    name: str, seconds: Callable[[int], float], depth: int
) -> None:
    load = LOADS[name]
    share, _ = both(load, Device(seconds), Foreseeing(never, sure=0.9), depth)
    assert share < 1.005


@pytest.mark.parametrize(("seconds", "most"), [(0.0004, 1.005), (0.005, 1.003), (0.02, 1.003)])
@pytest.mark.parametrize("rows", [1, 8])
def test_text_that_cannot_be_guessed_costs_next_to_nothing(rows: int, seconds: float, most: float) -> None:
    """Answers come one after the other, each with a prompt that the drafter reads when it is first asked about."""

    def load(rig: Rig) -> float:
        for number in range(rows * 8):
            rig.add(1, 150 + number % 200, prompt=300)
            while number + 1 - rig.ended >= rows:
                rig.step()
        return rig.until_done()

    def step(tokens: int) -> float:
        return seconds * (0.7 + 0.3 * tokens / rows)

    share, rig = both(load, Device(step), Foreseeing(never, sure=0.3, most=0))
    assert share < most and rig.now > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_an_executor_that_is_never_right_costs_less_than_a_hundredth(depth: int) -> None:
    device = Device(memory_bound, never, pass_seconds=0.004)
    share, _ = both(answers(4, 3000), device, ExecutorDrafter("model", 5), depth)
    assert share < 1.01


@pytest.mark.parametrize("depth", [1, 2])
def test_little_is_lost_where_drafts_stop_being_right(depth: int) -> None:
    """They are right in the first 200 tokens of every answer."""

    def right(sequence: int, place: int) -> bool:
        return place < 200

    def load(output: int) -> Load:
        def run(rig: Rig) -> float:
            for _ in range(4):
                rig.add(4, output)
                rig.until_done()
            return rig.now

        return run

    begins, _ = both(load(200), Device(between), Foreseeing(right), depth)
    share, _ = both(load(800), Device(between), Foreseeing(right), depth)
    assert share < (200 * begins + 600) / 800 + 0.035


def test_where_even_right_drafts_would_not_pay_the_drafter_is_hardly_asked() -> None:
    drafter = Foreseeing(often(1.0))
    rig = Rig(Device(compute_bound), drafter)
    rig.add(16, 300)
    rig.until_done()
    assert drafter.asked < 16 * 300 / 7 and not any(rig.drafts())


@pytest.mark.parametrize("drafter", [Foreseeing(often(0.9)), ExecutorDrafter("model", 5)])
def test_no_prompt_waits_for_drafts(drafter: Foreseeing | ExecutorDrafter) -> None:
    """Decodes have drafts in steps without prompts."""
    rig = Rig(Device(between, often(0.9)), drafter)
    rig.add(3, 1500)
    for turn in range(20):
        rig.add(1, 20, prompt=150 * (turn + 1))  # of which the prefix cache has all but 150
        for _ in range(10):
            rig.step()
    prompts = [plan for plan in rig.plans if any(chunk.length > 1 + chunk.num_drafts for chunk in plan.chunks)]
    assert len(prompts) >= 20 and sum(rig.drafts()) > 200
    assert not any(drafts_of(plan) for plan in prompts)


def test_a_drafter_without_an_idea_is_asked_seldom() -> None:
    """Steps take a millisecond: asking in vain takes a small share of the time."""
    drafter = Foreseeing(never, most=0)
    rig = Rig(Device(lambda tokens: 0.001), drafter)
    rig.add(16, 1000)
    rig.until_done()
    assert 20 < drafter.asked < 1000


def test_no_sequence_is_left_out_for_drafts_that_a_prompt_leaves_no_room_for() -> None:
    rig = Rig(Device(memory_bound), Foreseeing(often(1.0)), depth=2)
    rig.add(1, 600)
    for _ in range(60):
        rig.step()
    assert any(rig.drafts())  # which pay, so that it is due in every step
    before = len(rig.plans)
    rig.add(4, 10, prompt=4000)
    while len(rig.plans) < before + 30:
        rig.step()
    without = [plan for plan in rig.plans[before + 3 :] if all(chunk.sequence_id for chunk in plan.chunks)]
    assert len(without) <= 1


def test_a_step_with_drafts_keeps_an_itl_target() -> None:
    """Also where it is the target of another request."""

    def longest(itl: float | None) -> float:
        rig = Rig(Device(between), Foreseeing(often(0.95)))
        rig.add(1, 400, itl=itl)
        rig.add(3, 400)
        rig.until_done()
        mine = [plan for plan in rig.plans if any(chunk.sequence_id == 0 for chunk in plan.chunks)]
        return max(between(plan.tokens) for plan in mine[40:])

    assert longest(0.015) <= 0.015 < longest(None)


def test_a_tpot_target_bounds_the_steps_in_which_its_sequence_has_no_drafts() -> None:
    def lengths(right: Right, tpot: float | None) -> list[float]:
        """Return the seconds of the steps up to the end of the sequence that has the target."""
        drafter = Foreseeing(right)
        rig = Rig(Device(between), drafter)
        rig.add(1, 400, tpot=tpot)
        rig.add(3, 4000)
        while 0 not in drafter.ended:
            rig.step()
        return [between(plan.tokens) for plan in rig.plans[40:]]

    its_own = lengths(often(0.95), 0.015)
    assert max(its_own) > 0.015 and sum(its_own) < 0.015 * 360, "its drafts bring it several tokens"
    of_others = lengths(lambda sequence, place: sequence > 0, 0.015)
    assert fmean(of_others) <= 0.015 < fmean(lengths(lambda sequence, place: sequence > 0, None))


# -- ends -------------------------------------------------------------------------------------------------------


def test_the_drafter_is_notified_of_every_end() -> None:
    drafter = Foreseeing(often(0.8))
    rig = Rig(Device(memory_bound), drafter)
    rig.add(3, 200)
    for _ in range(25):
        rig.step()
    rig.scheduler.abort("1", rig.now)
    rig.until_done()
    assert sorted(drafter.ended) == [0, 1, 2] and drafter.ended[0] == 1


def test_counts_are_those_of_the_plans() -> None:
    rig = Rig(Device(memory_bound), Foreseeing(often(0.6)))
    rig.add(4, 200)
    rig.until_done()
    stats = rig.scheduler.stats().speculation
    assert stats is not None and stats.drafter == "foreseeing"
    drafts = [count for count in rig.drafts() if count]
    assert sum(stats.drafted) == sum(drafts)
    assert stats.chunks == len(drafts)
    assert stats.drafted == [sum(count > place for count in drafts) for place in range(max(drafts))]
    assert stats.accepted == sorted(stats.accepted, reverse=True)
    assert sum(stats.accepted) == 4 * 200 - sum(1 for plan in rig.plans for chunk in plan.chunks if chunk.sample)
    assert stats.steps == sum(any(chunk.num_drafts for chunk in plan.chunks) for plan in rig.plans)
