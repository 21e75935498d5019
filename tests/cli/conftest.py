"""The fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .terminal import Caller


@pytest.fixture
def inflight(capfd: pytest.CaptureFixture[str], tiny: Path) -> Caller:
    return Caller(capfd, tiny)
