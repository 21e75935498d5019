"""Real runs beside a simulation are tried again where the machine was disturbed."""

from __future__ import annotations

import pytest

from benchmarks import undisturbed
from benchmarks.undisturbed import UndisturbedRuns
from inflight.metrics.summary import Summary, summarize
from inflight.simulate.fitted import FittedModel

MODEL = FittedModel(0.01, (0.001,))


def runs(paces: list[float], tries: int = 3) -> UndisturbedRuns:
    """Runs on a machine on which a lone request has these TPOTs, one after the other, and then the last one."""
    return UndisturbedRuns(lambda: paces.pop(0) if len(paces) > 1 else paces[0], tries)


def summary() -> Summary:
    return summarize([])


def test_calibration_is_repeated_until_memory_is_as_fast_before_as_after() -> None:
    calibrated = runs([1.0, 1.5, 1.5, 1.5])
    assert calibrated.calibrate(lambda: MODEL) is MODEL
    calibrated.run(lambda: (summary(), 0.0))
    assert calibrated.calibrations == 2
    assert "Calibration ran 2 times, until memory was as fast before it as after it." in calibrated.describe()


def test_a_calibration_that_was_never_steady_is_said_to_be_so() -> None:
    calibrated = runs([1.0, 2.0, 1.0, 2.0, 2.0], tries=2)
    calibrated.calibrate(lambda: MODEL)
    calibrated.run(lambda: (summary(), 0.0))
    assert "Calibration ran 2 times, and memory was not as fast" in calibrated.describe()


def test_a_run_is_repeated_while_threads_wait_or_memory_has_another_pace() -> None:
    # Calibration before and after, then before and after each of three runs.
    machine = runs([1.0, 1.0, 1.0, 1.0, 1.0, 1.3, 1.0, 1.0])
    machine.calibrate(lambda: MODEL)
    waited = iter([0.4, 0.0, 0.01])
    last = machine.run(lambda: (summary(), next(waited)))
    assert [(run.waited, run.off) for run in machine.runs] == [(0.4, 0.0), (0.0, pytest.approx(0.3)), (0.01, 0.0)]
    assert machine.kept == [machine.runs[-1]] and machine.kept[0].summary is last
    assert "2 of 3 real runs were tried again" in machine.describe()


def test_of_disturbed_runs_the_least_disturbed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undisturbed, "PATIENCE", 0.0)
    machine = runs([1.0])
    machine.calibrate(lambda: MODEL)
    waited = iter([0.4, 0.2, 0.3])
    machine.run(lambda: (summary(), next(waited)))
    assert [run.waited for run in machine.kept] == [0.2]
    assert "1 of these were disturbed in all tries" in machine.describe()
