"""The C++ of the page on adding an operation: one file and its lines in two lists make an operation of the module."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/add-a-backend-op.md"
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
nanobind = pytest.importorskip("nanobind")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

RUN = """
import importlib.util, re, sys
from pathlib import Path
import numpy as np

name = "inflight.execution.backends._native"
spec = importlib.util.spec_from_file_location(name, next(Path(sys.argv[1]).glob("_native*.so")))
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from execution.backends.material import OnArrays
from inflight.execution.backends.native import NativeBackend

names = {}
for code in re.findall(r"```python\\n(.*?)```", Path(sys.argv[2]).read_text(), re.DOTALL):
    exec(code, names)
backend = NativeBackend("float32", 2)

def run(x, limit):
    made = backend.activation_of(x.copy())
    OnArrays(backend)._pass().clip(made, limit)
    return np.asarray(made.array)

names["check"](lambda x, limit: np.clip(x, -limit, limit), run)
try:
    run(np.ones((1, 4), np.float32), -1.0)
except ValueError as refused:
    print(refused)
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Copy the sources, with the page's operation among them."""
    whole, kernel, operation = re.findall(r"```cpp\n(.*?)```", PAGE.read_text(), re.DOTALL)
    native = tmp_path / "native"
    shutil.copytree(ROOT / "native", native)
    (native / "rows/clip.h").write_text(whole)
    with (native / "rows/kernels.h").open("a") as kernels:
        kernels.write(kernel)
    include, name = operation.splitlines()
    listed = (native / "pass/operations.h").read_text()
    listed = listed.replace("#pragma once\n", f"#pragma once\n{include}\n").replace(
        "each(embed)", f"{name} each(embed)"
    )
    (native / "pass/operations.h").write_text(listed)
    return native


def test_both_halves_compile(sources: Path) -> None:
    flags = ["-std=gnu++20", "-fsyntax-only", "-w", f"-I{sources}"]
    python = [f"-I{nanobind.include_dir()}", f"-I{sysconfig.get_path('include')}"]
    for half in (["-DINFLIGHT_ISA=portable", "rows/rows.cpp"], [*python, "module.cpp"]):
        subprocess.run([str(COMPILER), *flags, *half], cwd=sources, check=True, timeout=240)


@pytest.mark.wide
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake comes with the extra `check`")
def test_the_operation_is_built_and_keeps_its_contract(sources: Path, tmp_path: Path) -> None:
    built, environment = tmp_path / "build", {**os.environ, "INFLIGHT_KERNELS": "native"}
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(["cmake", "-S", sources, "-B", built, *options], env=environment, check=True, timeout=120)
    subprocess.run(["cmake", "--build", built], env=environment, check=True, timeout=1800)
    command = [sys.executable, "-c", RUN, str(built), str(PAGE)]
    ran = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "limit must be positive\n"), ran.stderr
