"""`inflight doctor --kernels all`: compile the kernels of every instruction set, and list what is compiled.

Knows how an environment of a checkout is made (`scripts/venv`); the kernels themselves are `backends.native`'s.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import inflight
from inflight.config.setting import SettingsError

if TYPE_CHECKING:
    from inflight.execution.backends.native import InstructionSet

COMMAND = "inflight doctor --kernels all"


def compile_all() -> None:
    """Compile what this environment's build lacks, before the kernels are loaded. A wheel lacks none.

    Raises:
        SettingsError: The environment is not one that `scripts/venv` made, or compiling failed.
    """
    checkout, environment = Path(inflight.__file__).parents[2], Path(sys.prefix)
    script, choices = checkout / "scripts" / "venv", environment / "choices"
    if not script.is_file():
        return
    if not choices.is_file():
        pip = f"{shlex.quote(sys.executable)} -m pip install --no-deps -e {shlex.quote(str(checkout))}"
        raise SettingsError(f"{environment} was not set up by {script}; `{pip}` compiles all kernels into it.")
    extras = dict(line.partition(" ")[::2] for line in choices.read_text().splitlines()).get("extras", "")
    done = subprocess.run([script, environment, extras], env={**os.environ, "INFLIGHT_KERNELS": "all"}, check=False)
    if done.returncode:
        raise SettingsError("The kernels were not compiled; the lines above say why.")


def listing(sets: list[InstructionSet]) -> list[str]:
    """A line for each instruction set: what the build and this processor make of it."""
    used = next((one for one in sets if one.runs and one.compiled), None)
    lines = []
    for one in sets:
        state = "compiled" if one.compiled else f"not compiled; `{COMMAND}` does it"
        if not one.runs:
            state += ", and this processor does not run it"
        lines.append(f"{one.name:<16}{'in use' if one is used else state}")
    return lines
