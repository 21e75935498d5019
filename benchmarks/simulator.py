"""How many requests a second the simulator gets through on one core, and how long a plan takes.

    python -m benchmarks.simulator [--requests N] [--profile SCENE] [--write]
    python -m benchmarks.simulator --plan [--write]

Chat-like traffic (prompts lognormal with median 250, about 200 output tokens) on virtual engines from nearly idle to
saturated. Requests, arrivals and step times are the same in every run; counted is CPU time of the whole simulation:
making prompts, scheduling, observing and summarising. The plan is that of docs/planning.md for 70 billion parameters,
from the command to its first answer and to its end, without trials that were run before and with them, and with its
modules compiled, as those of an installed package are; it has a section of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import steady
from benchmarks.results import table, write_section
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.simulate.fitted import FittedModel
from inflight.simulate.simulation import Pool, Simulation, SimulationSetup, simulate
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Lognormal
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Workload

STEPPED, FAST, UNSHARED = "stepping", "with fast-forward", "without prefix caching"
WAYS = (STEPPED, FAST, UNSHARED)  # the last with fast-forward, too: as trials of a plan, whose prompts share nothing
ASKED = {STEPPED: 1000, FAST: 5000}  # requests per second
PLAN_ASKED = 10  # seconds
AGAIN_ASKED = 1  # second, where all trials were run before
PLAN = (
    *("plan", "--model", "llama-3-70b", "--hardware", "a100-80", "--rate", "500"),
    *("--input-tokens", "lognormal:1020:4142", "--output-tokens", "lognormal:129:601", "--slo", "ttft=1000(p99)"),
)
GPU = FittedModel(0.008, (2e-5,), decode_context=1e-8, prefill_context=1e-9)


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    rate: float  # requests/s of virtual time
    rows: int
    budget: int


SCENES = (
    Scene("nearly idle", 1.0, 64, 2048),
    Scene("a third of its rows", 12.0, 64, 2048),
    Scene("busy", 25.0, 128, 2048),
    Scene("small steps", 6.0, 32, 96),
    Scene("all at once", 10_000.0, 256, 2048),  # as published runs send their requests
)


def traffic(rate: float, requests: int) -> Workload:
    chat = TrafficClass(
        name="", share=1.0, input=Lognormal(250, 1500, 4000), output=Lognormal(150, 700, 2000), max_tokens=2000
    )
    return synthesize([chat], arrivals=Poisson(rate), requests=requests)


def run(scene: Scene, requests: int, way: str) -> tuple[Simulation, float, float]:
    """Return the simulation, its mean of running requests, and the CPU seconds it took."""
    workload = traffic(scene.rate, requests)
    capacity = Capacity(20_000, 16, scene.rows, 8192, 32_000)
    settings = EngineSettings(
        max_num_seqs=scene.rows, max_num_batched_tokens=scene.budget, enable_prefix_caching=way != UNSHARED
    )
    scheduling = SchedulingSettings.of(early_end_tokens=0)
    setup = SimulationSetup(Pool(capacity, settings, scheduling, lambda number: GPU), fast_forward=way != STEPPED)
    began = time.process_time()
    done = simulate(workload, setup)
    concurrency = steady(done.observations).concurrency
    return done, concurrency, time.process_time() - began


def measure(requests: int, repeats: int) -> list[list[object]]:
    """A row for each scene. The scenes take turns, and the quickest of equal runs counts: on a shared machine the same
    work takes more CPU time while others use the core's other thread or its caches."""
    best: dict[tuple[str, str], tuple[Simulation, float, float]] = {}
    for _ in range(repeats):
        for scene in SCENES:
            for way in WAYS:
                found = run(scene, requests, way)
                before = best.setdefault((scene.name, way), found)
                assert found[0].observations == best[scene.name, STEPPED][0].observations, "skipping is not stepping"
                best[scene.name, way] = min(before, found, key=lambda one: one[2])
    return [_row(scene, requests, *(best[scene.name, way] for way in WAYS)) for scene in SCENES]


def _row(
    scene: Scene, requests: int, stepped: tuple[Simulation, float, float], *fast: tuple[Simulation, float, float]
) -> list[object]:
    done, concurrency, seconds = stepped
    output = statistics.fmean(one.output_tokens for one in done.observations)
    return [
        scene.name,
        f"{concurrency:.1f}",
        f"{output:.0f}",
        f"{done.steps / requests:.0f}",
        f"{1e6 * seconds / done.steps:.0f}",
        f"{requests / seconds:,.0f}",
        *(f"{requests / one[2]:,.0f}" for one in fast),
    ]


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan. first, wall: seconds to its first answer (None: none was shown) and to its end; cpu: seconds of CPU time
    of all its processes. answer: the first line."""

    first: float | None
    wall: float
    cpu: float
    answer: str


def planned(cache: Path, modules: Path, *options: str) -> Timed:
    """Run the command. cache: where it finds and stores trials. modules: the same of compiled modules."""
    command, environment = Path(sys.executable).parent / "inflight", {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment = {**environment, "PYTHONPYCACHEPREFIX": str(modules), "PYTHONDONTWRITEBYTECODE": ""}
    began, before, first = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), None
    with subprocess.Popen(
        [command, *PLAN, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        for line in running.stderr:
            if line.startswith("First answer"):
                first = time.monotonic() - began
        answer = running.stdout.read().partition("\n")[0]
    if running.returncode:
        raise RuntimeError(f"inflight plan ended with {running.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(first, time.monotonic() - began, cpu, answer)


def plan(write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        modules, cache = Path(folder, "modules"), Path(folder, "cache")
        planned(Path(folder, "other cache"), modules, "--fast")
        new, again = planned(cache, modules), planned(cache, modules)
    assert new.first is not None, "the answer is refined"
    body = (
        f"`inflight {shlex.join(PLAN)}` takes {new.wall:.1f} s (asked: {PLAN_ASKED}; it counts what else the machine "
        f"did; its modules are compiled), {new.cpu:.1f} s of CPU time, and shows its first answer after "
        f"{new.first:.1f} s. Asked again it ends after {again.wall:.1f} s (asked: under {AGAIN_ASKED}). It answers: "
        f"{new.answer}."
    )
    print(body)
    if write:
        write_section("simulator plan", "How long a plan takes", "python -m benchmarks.simulator --plan", body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="of each run (default 1000)")
    parser.add_argument("--repeats", type=int, default=6, help="the quickest of so many counts (default 6)")
    parser.add_argument("--fast", action="store_true", help="profile with fast-forward")
    parser.add_argument("--profile", metavar="SCENE", help="profile one scene (its name, or the beginning of it)")
    parser.add_argument("--plan", action="store_true", help="time the plan instead")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    if arguments.profile is not None:
        scene = next(one for one in SCENES if one.name.startswith(arguments.profile))
        profiler = cProfile.Profile()
        profiler.runcall(run, scene, arguments.requests, FAST if arguments.fast else STEPPED)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(30)
        return
    if arguments.plan:
        plan(arguments.write)
        return
    head = ["", "running, mean", "output tokens", "steps per request", "µs per step", "requests/s", FAST, UNSHARED]
    load = os.getloadavg()[1]
    rows = measure(arguments.requests, arguments.repeats)
    body = (
        f"Simulated requests per second of CPU time on one core, the quickest of {arguments.repeats} equal runs: "
        f"stepping through every plan (asked: {ASKED[STEPPED]:,}), and with foreseen decodes left out (asked: "
        f"{ASKED[FAST]:,}), which gives the same observations; the last as in a plan's trials, whose prompts share "
        f"nothing. Before, {load:.1f} processes of others ran at a time.\n\n"
    ) + table(head, rows)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.simulator --requests {arguments.requests} --repeats {arguments.repeats}"
        write_section("simulator", "How fast the simulator is", command, body)


if __name__ == "__main__":
    main()
