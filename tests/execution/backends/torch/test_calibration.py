"""A step model of an engine over the backend for devices, by the same measuring as of one on the CPU's kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.features import Features
from inflight.simulate.calibrate import CalibrationTarget, calibrate


def test_steps_of_a_device_are_measured_and_fitted(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "torch")
    engine = build_engine(
        EngineSettings(model=str(tiny), threads=1, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=200)
    )
    settings = {name: entry.value for name, entry in engine.settings.items()}
    try:
        model = calibrate(CalibrationTarget(engine.executor, engine.loop, 64, settings, gpu="a GPU's name"), 1.0)
    finally:
        engine.loop.close()
    assert model.provenance is not None
    assert model.provenance.machine.startswith("a GPU's name, ") and model.provenance.steps > 50
    assert str(model.provenance.settings["kernels"]).startswith("torch ")
    for features in (Features(64, 1, 0, 0, 2048.0), Features(1, 1, 1, 64, 0.0)):
        assert 0 < model.seconds(features) < float("inf")
    assert model.device == "cpu", "that computed"
