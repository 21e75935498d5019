"""Where recurrent state is copied: positions alone."""

from __future__ import annotations

import pytest

from inflight.core.kv.snapshot_spacing import SnapshotSpacing

SIZE = 16
SPACING = SnapshotSpacing(interval=256, least=64, tail=4)


@pytest.mark.parametrize(
    ("known", "branch", "newest", "start", "found"),
    [
        (608, 0, 0, 0, [592]),  # 608 itself leaves no token to compute, and less than the tail
        (611, 0, 0, 0, [592]),  # 608 leaves less than the tail
        (612, 0, 0, 0, [608]),
        (612, 0, 592, 592, [608]),  # one block further is worth it: a prompt ends once
        (612, 0, 608, 608, []),
        (612, 400, 0, 0, [400, 608]),
        (612, 592, 0, 0, [592]),  # a branch close before the end goes before it
        (612, 48, 0, 0, [608]),  # so few tokens are soon computed again
        (3, 0, 0, 0, []),
    ],
)
def test_ends(known: int, branch: int, newest: int, start: int, found: list[int]) -> None:
    assert SPACING.ends(known, branch, newest, start, SIZE) == found


def test_marks_stand_at_intervals_and_before_the_end() -> None:
    """The last one is for a message that is edited."""
    assert SPACING.marks([1024], 1030, 0, 0, 1030, SIZE) == [256, 512, 768, 960]
    assert SPACING.marks([800], 1030, 230, 230, 700, SIZE) == [512]
    assert SPACING.marks([608], 612, 0, 0, 612, SIZE) == [256, 544], "none close to another one"
    assert SPACING.marks([672], 676, 600, 600, 676, SIZE) == []


@pytest.mark.parametrize(
    ("ends", "known", "newest", "start", "end", "found"),
    [
        ([1024], 1030, 0, 0, 1030, 992),
        ([1024], 1030, 960, 960, 1030, 992),  # half as far from the others as other marks are
        ([1024], 1030, 976, 976, 1030, None),
        ([1024], 1030, 0, 0, 980, None),  # not in this chunk
        ([1008], 1030, 0, 0, 1030, None),  # a branch is near enough
    ],
)
def test_a_late_mark_stands_half_as_far_from_the_end(
    ends: list[int], known: int, newest: int, start: int, end: int, found: int | None
) -> None:
    assert SPACING.late_mark(ends, known, newest, start, end, SIZE) == found


def test_a_short_answer_has_one_at_each_block_and_a_long_one_at_each_fourth() -> None:
    prompt, newest, found = 100, 96, []
    for end in range(101, 100 + 1024):
        at = SPACING.decoded(newest, prompt, end - 1, end, SIZE)
        if at is not None:
            found.append(at)
            newest = at
    gaps = [after - before for before, after in zip([96, *found], found, strict=False)]
    assert found[:4] == [112, 128, 144, 160] and gaps == sorted(gaps)
    assert set(gaps) == {16, 32, 48, 64} and gaps[-8:] == [64] * 8
