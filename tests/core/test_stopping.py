"""Stop rules, token by token."""

from __future__ import annotations

from typing import Any

from inflight.core.stopping import StopChecker
from inflight.core.types.events import Finish

from .builders import request
from .harness import Letters

END = frozenset({9})


def end_of(tokens: list[int], most: int = 6, output: int | None = None, **params: Any) -> tuple[int, Finish | None]:
    """After how many tokens it ends, and how."""
    of = request(output=output, **{"ignore_eos": False, **params})
    checker = StopChecker(of, END, most, Letters(of) if of.params.stop else None)
    for count, token in enumerate(tokens, 1):
        finish = checker.check(token)
        if finish is not None:
            return count, finish
    return len(tokens), None


def test_end_tokens_and_lengths() -> None:
    assert end_of([1, 2, 9]) == (3, Finish("stop"))
    assert end_of([1, 2, 3]) == (3, None)
    assert end_of([1] * 8) == (6, Finish("length"))
    assert end_of([9], most=1) == (1, Finish("stop"))
    assert end_of([1], most=1) == (1, Finish("length"))


def test_ignore_eos_drops_the_models_ends_and_keeps_the_requests() -> None:
    assert end_of([9, 1, 3], ignore_eos=True, stop_token_ids=[3]) == (3, Finish("stop", 3))
    assert end_of([9, 3], stop_token_ids=[9]) == (1, Finish("stop"))


def test_nothing_ends_before_min_tokens_but_the_length() -> None:
    assert end_of([9, 9, 9, 9], min_tokens=3) == (3, Finish("stop"))
    assert end_of([3, 3, 3], min_tokens=2, stop_token_ids=[3]) == (2, Finish("stop", 3))
    assert end_of([9] * 4, most=2, min_tokens=3) == (2, Finish("length"))


def test_stop_strings() -> None:
    assert end_of([0, 0, 1, 2], stop="ab") == (3, Finish("stop", "ab"))
    assert end_of([0, 1, 2, 0, 1], stop="ab", min_tokens=3) == (5, Finish("stop", "ab"))
    assert end_of([0, 9], stop="aj") == (2, Finish("stop"))  # the end token comes first


def test_a_forced_length_is_the_whole_rule() -> None:
    assert end_of([9, 0, 1, 3, 4], output=4, stop="ab", stop_token_ids=[3]) == (4, Finish("length"))
    assert end_of([9] * 8, most=5, output=7) == (5, Finish("length"))
