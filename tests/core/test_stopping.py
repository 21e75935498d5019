"""Stop rules, token by token."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.stopping import StopChecker
from inflight.core.types.events import Finish

from .builders import request
from .harness import Letters

STOP, LENGTH = Finish("stop"), Finish("length")


@pytest.mark.parametrize(
    ("tokens", "most", "settings", "count", "finish"),
    [
        ([1, 2, 9], 6, {}, 3, STOP),
        ([1, 2, 3], 6, {}, 3, None),
        ([1] * 8, 6, {}, 6, LENGTH),
        ([9], 1, {}, 1, STOP),
        ([1], 1, {}, 1, LENGTH),
        # ignore_eos drops the model's ends and keeps the request's.
        ([9, 1, 3], 6, {"ignore_eos": True, "stop_token_ids": [3]}, 3, Finish("stop", 3)),
        ([9, 3], 6, {"stop_token_ids": [9]}, 1, STOP),
        # Nothing ends before min_tokens but the length.
        ([9, 9, 9, 9], 6, {"min_tokens": 3}, 3, STOP),
        ([3, 3, 3], 6, {"min_tokens": 2, "stop_token_ids": [3]}, 2, Finish("stop", 3)),
        ([9] * 4, 2, {"min_tokens": 3}, 2, LENGTH),
        ([0, 0, 1, 2], 6, {"stop": "ab"}, 3, Finish("stop", "ab")),
        ([0, 1, 2, 0, 1], 6, {"stop": "ab", "min_tokens": 3}, 5, Finish("stop", "ab")),
        ([0, 9], 6, {"stop": "aj"}, 2, STOP),  # the end token comes first
        # A forced length is the whole rule.
        ([9, 0, 1, 3, 4], 6, {"output": 4, "stop": "ab", "stop_token_ids": [3]}, 4, LENGTH),
        ([9] * 8, 5, {"output": 7}, 5, LENGTH),
    ],
)
def test_an_output_ends_at_the_first_rule_that_holds(
    tokens: list[int], most: int, settings: dict[str, Any], count: int, finish: Finish | None
) -> None:
    """The model ends with 9. most: tokens that there is room for."""
    of = request(**{"ignore_eos": False, "output": None, **settings})
    checker = StopChecker(of, frozenset({9}), most, Letters(of) if of.params.stop else None)
    ends = [(index, found) for index, token in enumerate(tokens, 1) if (found := checker.check(token)) is not None]
    assert ends[:1] == ([] if finish is None else [(count, finish)])
