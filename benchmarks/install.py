"""The first minute. With a wheel: how long installing it takes, how much is installed, when the first answer is there.
With a checkout: when `./inflight run` has answered, kernels compiled.

Each repeat makes an environment of its own, with pip or uv and empty caches, and asks as `scripts/try_wheel.py` does.
Packages come from the registry that pip is set up for, so that the network is in the figure; the processor time is not.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import table, write_section

TRY = Path(__file__).parent.parent / "scripts" / "try_wheel.py"
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Repeat:
    """Seconds: of the installation by the clock and by the processor, and from `inflight serve` to the answer."""

    installed: float
    processor: float
    answered: float
    megabytes: float

    @property
    def whole(self) -> float:
        return self.installed + self.answered


def install(tool: Sequence[str], wheel: Path) -> Repeat:
    """tool: a command that installs; {python} in it is the new environment's interpreter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = str(folder / "bin" / "python")
        started, before = time.monotonic(), _processor()
        command = [word.format(python=python) for word in tool]
        subprocess.run([*command, wheel], check=True, capture_output=True, cwd=name)
        installed, processor = time.monotonic() - started, _processor() - before
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        output = subprocess.run([python, TRY], check=True, capture_output=True, text=True, cwd=name).stdout
        [seconds] = re.findall(r"answered ([\d.]+) s", output)
    return Repeat(installed, processor, float(seconds), size / MEGABYTE)


def answer_from_checkout(checkout: Path) -> tuple[float, float]:
    """Return the seconds to the first answer of a fresh clone, by the clock and by the processor, with empty caches."""
    with tempfile.TemporaryDirectory() as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "-q", checkout, clone], check=True)
        environment = {**os.environ, "HOME": name, "PIP_NO_CACHE_DIR": "1"}
        started, before = time.monotonic(), _processor()
        command = [str(clone / "inflight"), "run", "What is continuous batching?", "--max-tokens", "1"]
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=name)
        return time.monotonic() - started, _processor() - before


def _processor() -> float:
    """Return the processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f})"


def _report_checkout(checkout: Path, repeats: int, write: bool) -> None:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    walls, processor = zip(*(answer_from_checkout(checkout) for _ in range(repeats)), strict=True)
    body = (
        f"`./inflight run` on a fresh clone, to its answer, with empty caches on {cores} cores: {spread(walls)}, of "
        f"processor time {spread(processor)}. {load:.0f} processes wanted the cores meanwhile."
    )
    print(body)
    if write:
        command = f"python -m benchmarks.install --checkout . --repeats {repeats}"
        write_section("install checkout", "The first minute with a checkout", command, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--checkout", type=Path, help="a repository to clone, instead of a wheel")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--uv", help="path of uv, where it is to be tried, too")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if (given.wheel is None) == (given.checkout is None):
        parser.error("give a wheel or --checkout")
    if given.checkout:
        return _report_checkout(given.checkout.resolve(), given.repeats, given.write)

    pip = [sys.executable, "-m", "pip", "--python", "{python}", "install", "-q", "--no-cache-dir"]
    tools = {"pip install": pip}
    if given.uv:
        tools["uv pip install"] = [given.uv, "pip", "install", "-q", "--no-cache", "--python", "{python}"]
    load = os.getloadavg()[0]
    found = {name: [install(tool, given.wheel.resolve()) for _ in range(given.repeats)] for name, tool in tools.items()}
    rows = [
        [
            f"`{name}`",
            spread([one.installed for one in repeats]),
            spread([one.processor for one in repeats]),
            spread([one.answered for one in repeats]),
            spread([one.whole for one in repeats]),
            f"{repeats[0].megabytes:,.0f} MB",
        ]
        for name, repeats in found.items()
    ]
    head = ["with", "installed", "of it processor time", "`inflight serve` to its answer", "both", "on disk"]
    said = (
        f"{given.wheel.name}, {given.wheel.stat().st_size / MEGABYTE:.1f} MB, with all that it needs, into an empty "
        f"environment. Asked: both in less than 20 s. {load:.0f} processes wanted the cores meanwhile."
    )
    body = f"{said}\n\n{table(head, rows)}"
    print(body)
    if given.write:
        uv = " --uv uv" if given.uv else ""
        command = f"python -m benchmarks.install {given.wheel.name} --repeats {given.repeats}{uv}"
        write_section("install", "The first minute with a wheel", command, body)


if __name__ == "__main__":
    main()
