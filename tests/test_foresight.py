"""The best that an order of eviction could reach, which knows when sessions come back."""

from __future__ import annotations

from benchmarks.foresight import ServedTurn, foreseen


def turns(*of: tuple[str, float, int]) -> list[ServedTurn]:
    """Sessions, when they come, and tokens of their prompts; an answer is of 8, and takes a moment."""
    return [ServedTurn(session, begins, begins + 0.1, tokens, 8) for session, begins, tokens in of]


def test_with_room_for_all_everything_but_what_is_new_is_cached() -> None:
    result = turns(("a", 0.0, 24), ("b", 1.0, 24), ("a", 2.0, 40), ("b", 3.0, 40))
    assert foreseen(result, 100, 8, 0) == (32 + 32) / 128
    assert foreseen(result, 100, 8, 16) == (16 + 16 + 32 + 32) / 128, "what is shared is there from the first on"


def test_what_comes_back_last_goes_first_ends_before_beginnings() -> None:
    result = turns(("a", 0.0, 24), ("b", 1.0, 24), ("b", 2.0, 24), ("a", 3.0, 24))
    # Six blocks: b's turn at 1 s takes two of a's four, and at the end a has its first two.
    assert foreseen(result, 6, 8, 0) == (16 + 16) / 96
    assert foreseen(result, 4, 8, 0) == 16 / 96


def test_who_never_comes_back_goes_at_once() -> None:
    result = turns(("over", 0.0, 24), ("a", 1.0, 24), ("b", 2.0, 24), ("a", 3.0, 24), ("b", 4.0, 24))
    assert foreseen(result, 8, 8, 0) == (16 + 16) / 120
