"""The picture of two steps in flight: what is measured for it, and the rule that puts host and device together."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks import gpu_step
from benchmarks.gpu_step import CLASSES, SHOWN, HostStep, measured_steps, picture, timeline
from inflight.core.types.features import Features
from inflight.models.known import known_model
from inflight.simulate.hardware import find_gpu
from inflight.simulate.roofline import Roofline

MODEL = Roofline(known_model("qwen3-8b"), find_gpu("h100"))
HELD = Features(tokens=16, rows=16, samples=16, decode_context=1600, prefill_context=0)


def steps(host_seconds: float, count: int = 9) -> list[HostStep]:
    return [HostStep(HELD, plan=host_seconds, prepare=host_seconds, commit=host_seconds)] * count


@pytest.mark.parametrize("share", [0.01, 0.5, 3.0])
def test_the_host_is_one_step_ahead_and_commits_what_has_come(share: float) -> None:
    """share: of a step on the device, that each part of the host's work takes."""
    host, device = timeline(steps(share * MODEL.seconds(HELD)), MODEL)
    ends = {bar.step: bar.end for bar in device}
    begins = {bar.step: bar.start for bar in reversed(device)}
    prepared = {bar.step: bar.end for bar in host if bar.name == "prepare, upload"}
    for bars in (host, device):
        assert all(one.end <= later.start for one, later in pairwise(bars)), "one thing at a time"
    assert all(begins[step] >= prepared[step] for step in begins)
    assert all(bar.start >= ends[bar.step] for bar in host if bar.name == "commit")
    assert all(bar.start >= ends[bar.step - 2] for bar in host if bar.name == "plan" and bar.step >= 2)
    waits = [begins[step] - ends[step - 1] for step in range(2, 9)]
    if 3 * share < 1:
        assert max(waits) == pytest.approx(0, abs=1e-12), "what the host does is hidden"
    else:
        assert min(waits) > 0


@pytest.mark.wide
def test_it_draws_what_an_engine_does_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "torch")
    for name, few in {"ROWS": 4, "PROMPT": 16, "ANSWER": 8}.items():
        monkeypatch.setattr(gpu_step, name, few)
    found = measured_steps()
    assert len(found) > SHOWN and all(one.plan > 0 and one.prepare > 0 and one.commit > 0 for one in found)
    assert max(one.features.rows for one in found) == 4
    drawn = picture(*timeline(found, MODEL), first=2)
    texts = {one.text for one in ElementTree.fromstring(drawn.standalone()).iter() if one.text}
    assert {f"step {number}" for number in range(1, SHOWN + 1)} | set(CLASSES) <= texts
