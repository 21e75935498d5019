"""The parts that a build of the kernels compiles: for which instruction sets, and with which flags."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.execution.backends import native

SOURCES = Path(__file__).parents[1] / "native"
pytestmark = pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake comes with the extra `check`")


def configure(folder: Path, *options: str, kernels: str = "all") -> subprocess.CompletedProcess[str]:
    command = ["cmake", "-S", SOURCES, "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options]
    environment = {**os.environ, "INFLIGHT_KERNELS": kernels}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def configured(folder: Path, *options: str, kernels: str = "all") -> list[str]:
    """Instruction sets that a build compiles."""
    done = configure(folder, *options, kernels=kernels)
    assert done.returncode == 0, done.stdout + done.stderr
    (compiled,) = re.findall(r"Instruction sets that are compiled: (\S+)", done.stdout)
    return compiled.split(";")


def test_the_flags_of_a_kernel_are_what_is_asked_of_the_cpu(tmp_path: Path) -> None:
    known = {one.name: {*one.needs} for one in native.instruction_sets()}
    assert configured(tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON") == [*known]
    seen = set()
    for one in json.loads((tmp_path / "compile_commands.json").read_text()):
        flags = {flag for flag in re.findall(r" -m(\S+)", one["command"]) if "=" not in flag}
        if found := re.search(r"-DINFLIGHT_ISA=(\w+)", one["command"]):
            seen.add(found[1])
            assert flags == known[found[1]], found[1]
    assert seen == {*known}


def test_a_build_for_this_machine_compiles_the_best_that_it_runs(tmp_path: Path) -> None:
    assert configured(tmp_path, kernels="native") == [native.available_isas()[0]]
    assert configured(tmp_path) == [one.name for one in native.instruction_sets()], "the folder does not keep it"


def test_a_build_for_another_machine_compiles_all(tmp_path: Path) -> None:
    system = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=x86_64")
    assert len(configured(tmp_path, *system, kernels="native")) == 7


def test_an_unknown_instruction_set_is_refused_by_name(tmp_path: Path) -> None:
    done = configure(tmp_path, kernels="avx3")
    assert done.returncode != 0
    assert 'INFLIGHT_KERNELS is "avx3", which is an error; set it to all, native, or one of' in " ".join(
        done.stderr.split()
    )
