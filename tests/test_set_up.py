"""Setting up an environment: what is printed while it goes on, and when it fails. Python and pip are played."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "venv"

PLAYED = """#!/usr/bin/env bash
case "$*" in
  -c*) ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *" install "*" -e "*)
    echo "${INFLIGHT_PUBLISHED:-$INFLIGHT_KERNELS}" >>"$ASKED"
    sleep 0.2
    echo "  [1/3] Building CXX object CMakeFiles/avx2_bf16.dir/bf16.cpp.o"
    echo "  [3/3] Linking CXX shared module _native.so"
    echo "Successfully installed inflight-llm-0.1.0" ;;
  *"install --"*"compile -r "*)
    echo "Collecting numpy>=1.26 (from -r requirements.txt)"
    echo "Installing collected packages: numpy, click"
    [ -z "$BROKEN" ] || { echo "ERROR: No matching distribution found for numpy"; exit 1; }
    echo "Successfully installed click-8 numpy-2" ;;
  *" download "*) [ -z "$PUBLISHED" ] || { mkdir -p "$VENV/published" && cp "$PUBLISHED" "$VENV/published"; } ;;
  "- "* | *sources_hash.py) exec "$REAL" "$@" ;;
esac
"""


def set_up(folder: Path, extras: str = "", broken: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """settings: further variables of the environment."""
    played = folder / "python"
    played.write_text(PLAYED)
    played.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(played), "REAL": sys.executable, "BROKEN": broken, "CXX": "true"}
    environment |= {"ASKED": str(folder / "asked"), "VENV": str(folder / "venv"), "PUBLISHED": ""} | settings
    return subprocess.run(
        [SCRIPT, folder / "venv", extras], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_says_what_is_compiled_and_fetched_and_does_it_once(tmp_path: Path) -> None:
    done = set_up(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kernels: 1 of 3 compiled (avx2 bf16)" in done.stderr
    assert "packages: 1 fetched (numpy)" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "kernels: compiled; packages: installed"
    assert done.stdout == "", "answers are piped"
    assert set_up(tmp_path).stderr == ""


def test_packages_are_those_of_the_project_and_of_the_extras_that_were_asked_for(tmp_path: Path) -> None:
    set_up(tmp_path)
    plain = (tmp_path / "venv" / "requirements.txt").read_text().split("\n")
    assert "click>=8.1" in plain and "pytest" not in plain
    other = tmp_path / "other"
    other.mkdir()
    set_up(other, "[check]")
    assert {*plain, "pytest"} <= {*(other / "venv" / "requirements.txt").read_text().split("\n")}


def test_what_failed_is_reported_with_the_place_of_the_log(tmp_path: Path) -> None:
    done = set_up(tmp_path, broken="yes")
    assert done.returncode == 1
    assert "No matching distribution found for numpy" in done.stderr
    assert done.stderr.splitlines()[-1] == f"Setting up failed; the whole log is in {tmp_path}/venv.log."
    assert not (tmp_path / "venv" / "stamp").exists()


def compiled(folder: Path) -> list[str]:
    """Return the request of each build so far: to compile, or to take as it is."""
    return (folder / "asked").read_text().split()


def test_another_machine_compiles_what_it_runs(tmp_path: Path) -> None:
    system = tmp_path / "cpuinfo"
    for features, builds in (("avx avx2 f16c fma", 1), ("fma avx2 f16c tsc", 1), ("avx2 f16c fma avx512f", 2)):
        system.write_text(f"processor : 0\nflags : fpu {features}\nflags : other\n")
        assert set_up(tmp_path, CPUINFO=str(system)).returncode == 0
        assert compiled(tmp_path) == ["native"] * builds
    system.write_text("a system that shows no flags\n")
    assert set_up(tmp_path, CPUINFO=str(system)).returncode == 0


def test_all_instruction_sets_are_compiled_for_the_check_and_from_when_they_are_asked_for(tmp_path: Path) -> None:
    set_up(tmp_path, "[check]")
    assert compiled(tmp_path) == ["all"]
    other = tmp_path / "other"
    other.mkdir()
    set_up(other)
    set_up(other, INFLIGHT_KERNELS="all")
    assert compiled(other) == ["native", "all"]
    (other / "venv" / "stamp").unlink()
    set_up(other)
    assert compiled(other) == ["native", "all", "all"]


@pytest.mark.parametrize(
    ("name", "sources", "asked", "is_taken"),
    [("", "", "1", True), ("another", "", "1", False), ("", "0", "1", False), ("", "", "", False)],
)
def test_a_published_module_of_these_sources_is_not_compiled_again_where_that_is_asked_for(
    tmp_path: Path, name: str, sources: str, asked: str, is_taken: bool
) -> None:
    """name, sources: of the wheel; empty: this checkout's. asked: INFLIGHT_TAKE_PUBLISHED."""
    root = SCRIPT.parents[1]
    own = subprocess.check_output([sys.executable, root / "native" / "sources_hash.py"], text=True).strip()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wheel, folder = tmp_path / "inflight.whl", "inflight/execution/backends"
    with ZipFile(wheel, "w") as packed:
        packed.writestr("x-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name or project['name']}\n")
        packed.writestr(f"{folder}/_native.abi.so", "compiled")
        packed.writestr(f"{folder}/_native.sources", (sources or own) + "\n")
    assert set_up(tmp_path, PUBLISHED=str(wheel), INFLIGHT_TAKE_PUBLISHED=asked).returncode == 0
    taken = tmp_path / "venv" / "published" / folder / "_native.abi.so"
    assert compiled(tmp_path) == [str(taken) if is_taken else "native"]
    assert not is_taken or taken.read_text() == "compiled"


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit sets the limit")
def test_a_stack_that_is_too_small_for_python_is_reported() -> None:
    limited = ["prlimit", "--stack=65536:65536", str(SCRIPT.parents[1] / "inflight"), "--version"]
    ended = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "a stack of 64 kB, and Python needs 512; raise it" in ended.stderr
