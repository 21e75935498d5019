"""The suffix drafter in an engine: the same tokens in fewer steps, the more so where answers come again."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from inflight.execution.drafters.suffix import SuffixDrafter

from ..test_drafts import Rig, requests


def test_what_was_answered_before_comes_in_fewer_steps(tiny: Path) -> None:
    rig, drafter = Rig(tiny, "reference"), SuffixDrafter()
    plain, before = rig.run(requests())
    first, learning = rig.run(requests(), drafter)
    again, after = rig.run(requests(), drafter)
    assert first == again == plain
    assert after.steps < 0.5 * before.steps and after.steps < learning.steps <= before.steps


def test_another_salt_has_nothing_of_it(tiny: Path) -> None:
    """Check that its steps and its drafts are those of a first request."""
    asked = [structs.replace(one, cache_salt="another") for one in requests()]
    rig, drafter = Rig(tiny, "reference"), SuffixDrafter()
    plain, alone = rig.run(asked, SuffixDrafter())
    rig.run(requests(), drafter)
    after, observed = rig.run(asked, drafter)
    assert after == plain and (observed.steps, observed.drafted) == (alone.steps, alone.drafted)
