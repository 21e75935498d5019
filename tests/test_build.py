"""Putting an engine together: what it leaves behind in the process that does it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from inflight.build import build_engine
from inflight.config.engine import EngineSettings


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_a_model_is_loaded_and_only_then(enabled: bool, tmp_path: Path) -> None:
    seen = []
    (gc.enable if enabled else gc.disable)()
    try:
        engine = build_engine(EngineSettings(threads=1), progress=lambda done, total: seen.append(gc.isenabled()))
        after = gc.isenabled()
        engine.loop.close()
        with pytest.raises(Exception, match="nothing"):
            build_engine(EngineSettings(model=str(tmp_path / "nothing")))
        after_fault = gc.isenabled()
    finally:
        gc.enable()
    assert seen and not any(seen)
    assert (after, after_fault) == (enabled, enabled)
