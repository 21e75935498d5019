"""Loading an engine for a server: the sentence about its device, and how numpy comes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from inflight.config.setting import Resolved
from inflight.execution.backends.torch import device
from inflight.launch.engine_loading import log_device


@pytest.mark.parametrize(
    ("asked", "value", "has_driver", "level"),
    [
        ("auto", "cpu", False, logging.INFO),
        ("auto", "cpu", True, logging.WARNING),
        ("cpu", "cpu", True, logging.INFO),
        ("auto", "cuda:0", True, logging.INFO),
    ],
)
def test_a_gpu_that_was_not_taken_is_warned_of(
    asked: str,
    value: str,
    has_driver: bool,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(device, "has_driver", lambda: has_driver)
    with caplog.at_level(logging.INFO):
        log_device(asked, Resolved(value, "for a reason"))
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [(level, f"Device: {value} (for a reason).")]


def test_numpy_is_loaded_without_threads_of_its_own() -> None:
    """Its BLAS would start one for each core; a number that the environment names stays."""
    code = (
        "import os; from inflight.config.threads import load_numpy; load_numpy(); "
        "print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    for number, expected in (("", "1 None"), ("1", "1 1")):
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        environment |= {"OPENBLAS_NUM_THREADS": number} if number else {}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected
