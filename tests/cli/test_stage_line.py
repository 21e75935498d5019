"""The line of a terminal that goes on while a stage of a plan is computed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from inflight.cli.stage_line import StageLine
from inflight.planning.stages import Stage, stage_of

LONG = """
import os, signal
from inflight.cli import stage_line
from inflight.planning.parallel import cores, run_all

def tick_within(sentence, show=stage_line.show):
    os.kill(os.getpid(), signal.SIGALRM)
    show(sentence)

def tick():
    os.kill(os.getppid(), signal.SIGALRM)

stage_line._TICK_SECONDS = 0.05
stage_line.show = tick_within
with stage_line.StageLine() as line:
    line("1 of 2: a long stage; about 90 s left")
    assert cores() == len(__import__("os").sched_getaffinity(0))
    run_all({"a": tick, "b": tick}, 2, lambda name: None)
    signal.pause()  # until the timer's next signal
    line("2 of 2: another")
    line("A sentence.")
print("the answer")
"""


def test_a_stage_is_read_from_its_report() -> None:
    assert stage_of("3 of 11: h100: the planned load; about 1,080 s left") == Stage(
        "3 of 11: h100: the planned load", 1080.0
    )
    assert stage_of("1 of 3: h100") == Stage("1 of 3: h100", None)
    assert stage_of("Price: 2.95 $ is an example; give yours.") is None


def test_the_line_counts_on_while_a_stage_lasts() -> None:
    now = 0.0
    line = StageLine(now=lambda: now)
    assert line.line() == ""
    line("4 of 11: the planned load; about 40 s left")
    now = 12.0
    assert line.line() == "4 of 11: the planned load: 12 s, about 28 s left"
    line("A sentence.")  # no stage: the one before goes on
    now = 60.0
    assert line.line() == "4 of 11: the planned load: 60 s, about 1 s left"
    line.begin("refining the answer")
    now = 65.0
    assert line.line() == "refining the answer: 5 s"
    line("5 of 11: more traffic")
    now = 200.0
    assert line.line() == "5 of 11: more traffic: 2 min 20 s"


def test_elsewhere_than_on_a_terminal_there_are_sentences_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with StageLine() as line:
        line("1 of 2: one")
    assert capfd.readouterr().err == "1 of 2: one\n"


def test_on_a_terminal_it_moves_beside_jobs_on_several_cores() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            shown += part
        assert process.stdout is not None and process.stdout.read() == b"the answer\n"
    os.close(ours)
    assert process.returncode == 0, shown.decode()
    moves = re.findall(rb"\r\x1b\[2K1 of 2: a long stage: (?:\d+ s, )?about \d+ s left", shown)
    assert len(moves) >= 3 and b"Traceback" not in shown
    lines = [re.sub(rb".*\x1b\[2K", b"", line) for line in shown.split(b"\r\n")]
    assert [line for line in lines if line] == [b"A sentence."], "stages leave no lines, and none in a sentence"


def test_a_terminal_that_is_gone_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", gone)
    line = StageLine()
    line.begin("a stage")
    line._tick(14, None)
