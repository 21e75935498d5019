"""Imports of planning: the engine's scheduler and the simulator, no model code, no server and no torch."""

from __future__ import annotations

import subprocess
import sys


def test_planning_loads_no_model_code() -> None:
    modules = "inflight.planning, inflight.planning.plan, inflight.planning.tuning, inflight.planning.result"
    shown = f"import {modules}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"torch", "transformers", "click", "rich", "starlette", "tokenizers", "inflight.build"})
    assert not any(name.startswith(("inflight.execution", "inflight.server", "inflight.text")) for name in loaded)
    assert "inflight.core.scheduling.scheduler" in loaded
    assert "tomllib" not in loaded, "data sheets are read when a GPU is asked for"
