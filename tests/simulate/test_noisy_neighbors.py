"""What others had of the processors, from the system's account."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflight.simulate.measuring import Account, account, others_share


def test_others_are_what_is_neither_idle_nor_ones_own() -> None:
    before = Account(total=100.0, worked=50.0, own=10.0, stolen=1.0)
    after = Account(total=120.0, worked=60.0, own=18.0, stolen=2.0)
    assert others_share(before, after) == (10 - 8 + 1) / 20
    assert others_share(before, Account(120.0, 50.0, 12.0, 1.0)) == 0.0  # ticks are coarse
    assert others_share(before, before) is None
    assert others_share(None, after) is None


def test_a_processors_line_is_read(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    stat = tmp_path / "stat"
    lines = [f"cpu{number} 10 20 30 100 40 5 6 7 9 0" for number in range(4096)]
    stat.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *lines, "intr 5"]))
    found = account(stat)
    usable = len(os.sched_getaffinity(0))
    assert found is not None
    seconds = [218 * usable / tick, 71 * usable / tick, 7 * usable / tick]
    assert [found.total, found.worked, found.stolen] == pytest.approx(seconds)


def test_where_the_system_does_not_say_nothing_is_known(tmp_path: Path) -> None:
    assert account(tmp_path / "none") is None
    (tmp_path / "short").write_text("cpu0 1 2 3\n")
    assert account(tmp_path / "short") is None
    (tmp_path / "other").write_text("something else\n")
    assert account(tmp_path / "other") is None
