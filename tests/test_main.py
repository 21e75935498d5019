"""The command's entry point, while the rest is imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

INTERRUPTED = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for what it runs in the background

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
sys.argv = ["inflight", "run", "hello"]
from inflight.__main__ import main
main()
"""


def test_ctrl_c_while_modules_are_imported_is_no_traceback() -> None:
    for name in ("inflight.cli", "click", "inflight.cli.run", "numpy", "inflight.build.engine"):
        program = INTERRUPTED.format(name=name)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "Stopped."), name


def test_the_command_is_this_entry_point_and_so_is_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["inflight"] == "inflight.__main__:main"
    command = [sys.executable, "-m", "inflight", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "inflight")
