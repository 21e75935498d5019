"""The path of a decode step: few files, which the page lists."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight import LLM, SamplingParams
from inflight.execution.runner import InFlight, ModelRunner

PACKAGE = Path(inflight.__file__).parent / "execution"
ROOT = Path(__file__).parents[2]
MAX_FILES, MAX_LINES = 14, 2000
MAX_NATIVE_FILES, MAX_NATIVE_LINES = 17, 3250


def listed(first: str, ending: str) -> list[str]:
    """Files of a table of the page that begins behind such words."""
    page = (ROOT / "docs" / "engine-internals.md").read_text(encoding="utf-8")
    table = page[page.index(first) : page.index(ending, page.index(first))]
    found = []
    for row in re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE):
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            folder = name.rpartition("/")[0] if "/" in name else folder
            found.append(f"{folder}/{name.rpartition('/')[2]}".lstrip("/"))
    return found


def lines(files: list[Path]) -> int:
    return sum(len(one.read_text(encoding="utf-8").splitlines()) for one in files)


def passed(make: Callable[[], LLM], prompt: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Serve a prompt; return the files of the package that its decode steps pass."""
    called = set[str]()

    def note(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            called.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))

    def watch(kind: type, name: str, decodes: Callable[..., bool]) -> None:
        original = getattr(kind, name)

        def watched(*arguments: Any) -> Any:
            if not decodes(*arguments):
                return original(*arguments)
            sys.setprofile(note)
            try:
                return original(*arguments)
            finally:
                sys.setprofile(None)

        monkeypatch.setattr(kind, name, watched)

    def is_decode(plan: Any) -> bool:
        return bool(plan.chunks) and all(one.length == 1 and not one.num_drafts for one in plan.chunks)

    monkeypatch.delenv("INFLIGHT_ISA", raising=False)
    llm = make()
    watch(ModelRunner, "submit", lambda _, plan: is_decode(plan))
    watch(InFlight, "result", lambda flight: is_decode(flight.plan))
    llm.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True))
    return called


def test_a_decode_step_passes_the_files_that_the_page_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    called = passed(lambda: LLM(max_model_len=128, speculation="off"), "Once upon a time", monkeypatch)
    path = listed("A decode step on a CPU passes", "and then")
    assert called == set(path)
    assert len(path) <= MAX_FILES
    assert lines([PACKAGE / one for one in path]) <= MAX_LINES


def test_kernels_of_a_decode_step_are_the_files_that_the_page_lists() -> None:
    path = [ROOT / "native" / one for one in listed("and then, within one call", "Kernels are written")]
    assert len(path) <= MAX_NATIVE_FILES
    assert lines(path) <= MAX_NATIVE_LINES
