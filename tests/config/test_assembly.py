"""Settings that simulations resolve as engines do."""

from __future__ import annotations

import pytest

from inflight.config.assembly import budget
from inflight.config.engine import EngineSettings, resolve_budget, resolve_rows
from inflight.config.scheduling import SchedulingSettings
from inflight.core.strategies.registry import STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_simulated_step_is_as_wide_as_one_of_the_engine_on_that_device(strategy: str, device: str) -> None:
    options = {"itl_target": 0.1} if strategy == "adaptive" else {}
    settings, on_gpu = EngineSettings(device=device), device != "cpu"
    rows = int(resolve_rows(settings, on_gpu).value)
    found = budget(settings, SchedulingSettings().but(strategy=strategy, **options))
    assert found == resolve_budget(settings, rows, strategy, on_gpu).value
    assert (found > 2048) == on_gpu
