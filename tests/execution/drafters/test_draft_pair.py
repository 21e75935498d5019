"""The pair of models whose drafts are right with a known chance: they are, and steps yield what follows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.draft_pair import PairShape, write_pair
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

from ..driver import backends
from .engine_rig import Rig


@pytest.mark.parametrize(("wrong", "dtype"), [(0.0, "bfloat16"), (0.3, "float32"), (0.6, "bfloat16")])
def test_drafts_are_right_as_often_as_they_should(tmp_path: Path, wrong: float, dtype: str) -> None:
    shape = PairShape(vocab_size=512, layers=4, wrong=wrong)
    rig = Rig(*write_pair(tmp_path, shape), backends()[-1], dtype)
    prompts = [tuple(range(40 * number, 40 * number + 24)) for number in range(8)]
    params = SamplingParams(temperature=1.0, max_tokens=120, ignore_eos=True)
    asked = [
        Request(request_id=str(n), prompt_token_ids=prompt, params=params, seed=n) for n, prompt in enumerate(prompts)
    ]
    plain, _ = rig.run(asked)
    drafted, account = rig.run(asked, max_drafts=4)
    assert drafted == plain
    right = account.accepted / (account.accepted + account.stopped)  # of those that were compared
    assert account.accepted + account.stopped > 300
    assert right == 1 if wrong == 0 else right == pytest.approx(shape.acceptance, abs=0.06)


def test_what_a_step_yields() -> None:
    half = PairShape(wrong=0.5 / (1 - 1 / 2048))
    assert half.acceptance == pytest.approx(0.5)
    assert half.expected_tokens(0) == 1 and half.expected_tokens(2) == pytest.approx(1 + 0.5 + 0.25)
    assert PairShape(wrong=0.0).expected_tokens(3) == 4
