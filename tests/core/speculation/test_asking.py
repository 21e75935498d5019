"""Which sequences are due, after which pauses."""

from __future__ import annotations

from itertools import pairwise

from inflight.core.speculation.asking import MAX_FIRST_PAUSE, MAX_PAUSE, MAX_SHORT_PAUSES, SHORT_PAUSE, DraftBackoff


def asked_in_vain(backoff: DraftBackoff, steps: range, max_pause: int = MAX_PAUSE) -> list[int]:
    """Return the steps in which any sequence is due, where drafting for it never brings anything."""
    found = []
    for step in steps:
        if due := backoff.due(step):
            found.append(step)
            backoff.record_asked(due, step, 0.0)
            backoff.pause(due, step, max_pause)
    return found


def lengths(steps: list[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(steps)]


def test_pauses_double_up_to_the_longest() -> None:
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    assert lengths(asked_in_vain(backoff, range(1200))) == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    assert lengths(asked_in_vain(backoff, range(40), max_pause=4))[-6:] == [4] * 6


def test_pauses_end_together_whenever_they_began() -> None:
    backoff = DraftBackoff()
    for number in range(16):
        backoff.begin(number, 0)
        asked_in_vain(backoff, range(1 + 3 * number, 4 + 3 * number), 32)
    asked_in_vain(backoff, range(60, 200), 32)
    for step in range(200, 300):
        due = backoff.due(step)
        assert len(due) == (16 if step % 32 == 0 else 0)
        backoff.pause(due, step, 32)


def test_right_drafts_end_the_pauses_and_earn_short_ones() -> None:
    """Each right draft earns one pause of 8 steps, in which text that goes on repeating is found."""
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    asked_in_vain(backoff, range(200))
    backoff.record_right({1: 2})
    assert not backoff.due(255) and backoff.due(256) == {1} == backoff.due(257)
    found = lengths(asked_in_vain(backoff, range(272, 400)))
    assert found.count(SHORT_PAUSE) == 1 + 2 and found[-1] > 2 * SHORT_PAUSE
    backoff.record_right({1: 100})
    assert lengths(asked_in_vain(backoff, range(528, 700))).count(SHORT_PAUSE) == 1 + MAX_SHORT_PAUSES


def test_a_newcomer_begins_with_half_the_last_pause_until_drafts_are_right() -> None:
    backoff = DraftBackoff()
    backoff.begin(1, -1)
    asked_in_vain(backoff, range(100))  # 128 was the last one
    backoff.begin(2, 99)
    first = 99 + 1 + MAX_FIRST_PAUSE  # at most
    assert not any(2 in backoff.due(step) for step in range(100, first)) and 2 in backoff.due(first)
    backoff.pause([2], first)
    assert not backoff.due(127) and backoff.due(128) == {1, 2}  # twice 64
    backoff.record_right({1: 1})
    backoff.begin(3, 170)
    assert 3 in backoff.due(171)


def test_first_questions_in_vain_pause_new_sequences_up_to_their_cost() -> None:
    backoff, step = DraftBackoff(), 0
    for number in range(20):
        backoff.begin(number, -1)
    found = []
    for step in range(200):
        if due := {one for one in backoff.due(step) if backoff.is_new(one)}:
            found.append(step)
            backoff.pause([min(due)], step)
            backoff.record_asked([min(due)], step, 20.5)
    assert lengths(found) == [1, 2, 4, 8, 16, *[21] * 8]
    assert not any(backoff.is_new(number) for number in range(len(found))) and backoff.is_new(len(found))
    backoff.record_right({0: 1})
    assert set(range(len(found), 20)) <= backoff.due(200)


def test_a_sequence_that_has_ended_is_not_due() -> None:
    backoff = DraftBackoff()
    for number in range(3):
        backoff.begin(number, 0)
    backoff.end(1)
    backoff.end(1)
    assert backoff.due(5) == {0, 2}
