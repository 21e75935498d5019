"""What a server says of its device at the start."""

from __future__ import annotations

import logging

import pytest

from inflight.cli.engine_loading import tell_device
from inflight.config.setting import Resolved
from inflight.execution.backends.torch import device


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
        tell_device(asked, Resolved(value, "for a reason"))
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (level, f"Computes on {value}: for a reason.")
    ]
