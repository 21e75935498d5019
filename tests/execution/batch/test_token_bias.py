"""Tokens that may be drawn next, by the settings of a row and what was drawn before."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.types.plan import NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.execution.batch.token_bias import token_bias

VOCABULARY = 10


def added(output: list[int], *, banned: tuple[int, ...] = (), bad: Any = (), **settings: Any) -> dict[int, float]:
    """Token id → sum of what is added to its logit after this output."""
    new = NewRequest(0, (1, 2), 2, SamplingParams(**settings), 0, 0, banned, bad)
    bias = token_bias(new, VOCABULARY)
    sums: dict[int, float] = {}
    if bias is not None:
        added, mask = bias.after(len(output))
        added = bias.with_bad(added, np.array(output, np.int32))
        for token, value in zip(*added, strict=True):
            sums[int(token)] = sums.get(int(token), 0.0) + float(value)
        if mask is not None:
            marks = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCABULARY]
            sums.update(dict.fromkeys(np.flatnonzero(marks == 0).tolist(), -np.inf))
    return sums


def test_nothing_is_added_where_nothing_is_asked() -> None:
    assert token_bias(NewRequest(0, (1,), 1, SamplingParams(), 0, 0), VOCABULARY) is None


def test_wishes_and_end_tokens() -> None:
    wishes = {"logit_bias": {3: 2.0, 4: 50.0}, "min_tokens": 2, "banned": (4, 5)}
    assert added([], **wishes) == added([7], **wishes) == {3: 2.0, 4: -np.inf, 5: -np.inf}
    assert added([7, 7], **wishes) == {3: 2.0, 4: 50.0}


def test_only_allowed_tokens_are_left() -> None:
    left = added([], allowed_token_ids=(2, 6), logit_bias={6: 1.0, 7: 1.0})
    assert {token for token in range(VOCABULARY) if left.get(token, 0.0) > -np.inf} == {2, 6} and left[6] == 1.0


def test_a_bad_word_is_not_completed() -> None:
    bad = ((4,), (1, 2, 3))
    assert added([], bad=bad) == added([2], bad=bad) == added([1, 2, 2], bad=bad) == {4: -np.inf}
    assert added([1, 2], bad=bad) == added([9, 1, 2], bad=bad) == {3: -np.inf, 4: -np.inf}


few = st.integers(0, 2)


@given(
    bad=st.lists(st.lists(few, min_size=1, max_size=4).map(tuple), max_size=8),
    output=st.lists(few, max_size=6),
)
def test_bad_words_are_found_as_by_looking_at_each(bad: list[tuple[int, ...]], output: list[int]) -> None:
    ended = {
        one[-1] for one in bad if [*one[:-1]] == output[len(output) - len(one) + 1 :] and len(one) - 1 <= len(output)
    }
    assert added(output, bad=tuple(bad)) == dict.fromkeys(ended, -np.inf)


def test_only_sequences_that_the_last_token_continues_are_looked_at() -> None:
    new = NewRequest(0, (1,), 1, SamplingParams(), 0, 0, (), ((4,), (1, 2), (3, 1, 2), (5, 6)))
    bias = token_bias(new, VOCABULARY)
    assert bias is not None and bias.bad == {1: [(1, 2), (3, 1, 2)], 5: [(5, 6)]}
    assert bias.always[0].tolist() == [4]
