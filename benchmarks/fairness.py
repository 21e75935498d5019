"""Fair share between tenants: the service gap against its published bound, and a light tenant beside a flooding one.

Service is counted from the plans, not from the policy's own books: one per prompt token and two per output token,
as VTC (arXiv 2401.00588) charges. The long runs are in virtual time on step times of a 0.5B model; `--real` repeats
them on the real engine with the built-in model. With --cpu-time that has one thread, and a clock of its CPU time, so
that others on the machine do not count.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, takewhile

from benchmarks.cpu_clock import CpuClock
from benchmarks.drive import Observer, drive
from benchmarks.engines import Model, assemble
from benchmarks.results import table, write_section
from benchmarks.virtual import VOCABULARY, virtual_engine
from benchmarks.workloads import lognormal, poisson, prompt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.policies.fair import OUTPUT_WEIGHT, PROMPT_WEIGHT
from inflight.core.types.plan import BatchPlan
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop

Opener = Callable[[str, Observer | None], EngineLoop]  # by policy


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine, and how much work keeps it busy: requests of a flood, visits of a light tenant, repeats of those."""

    name: str
    vocabulary: int
    open: Opener
    backlog: int
    visits: int
    repeats: int = 1


def kinds(with_real: bool, cpu: bool) -> list[Kind]:
    def virtual(policy: str, observer: Observer | None) -> EngineLoop:
        return virtual_engine(SchedulingSettings.of(policy=policy), observer=observer)

    found = [Kind("virtual, 0.5B", VOCABULARY, virtual, backlog=1200, visits=150)]
    if with_real:
        model = Model("built-in", num_blocks=2048, max_model_len=1024, threads=1 if cpu else None)
        settings = EngineSettings(max_num_seqs=32, max_model_len=1024, num_blocks=2048)

        def real(policy: str, observer: Observer | None) -> EngineLoop:
            scheduling = SchedulingSettings.of(policy=policy)
            clock = CpuClock() if cpu else MonotonicClock()
            return assemble(model.executor(settings, scheduling), clock, settings, scheduling, observer)

        name = f"real, built-in model, {'CPU time of one thread' if cpu else 'time'}"
        found.append(Kind(name, model.vocab_size, real, backlog=1200, visits=150, repeats=5))
    return found


def request(name: str, tenant: str, rng: random.Random, size: int, vocabulary: int, arrival: float = 0.0) -> Request:
    """size: how many times longer than the usual: prompt p50 30, output p50 30."""
    return Request(
        request_id=f"{tenant}-{name}",
        prompt_token_ids=prompt(rng, size * lognormal(rng, 30, 90, 90), vocabulary),
        params=SamplingParams(temperature=0, max_tokens=360, ignore_eos=True),
        forced_output_tokens=size * lognormal(rng, 30, 90, 90),
        tenant=tenant,
        arrival=arrival,
    )


# -- two backlogged tenants ---------------------------------------------------------------------------------------


class Service(Observer):
    """Counts what each tenant is served, as long as all of them have requests waiting."""

    def __init__(self, requests: list[Request]):
        """requests: in the order in which the engine takes them, which numbers their sequences."""
        super().__init__()
        self._requests = requests
        self._waiting = Counter(one.tenant for one in requests)
        self._started: set[int] = set()
        self.service = dict.fromkeys(self._waiting, 0.0)
        self.gap = 0.0
        self.max_held = 0

    def plan(self, plan: BatchPlan) -> None:
        super().plan(plan)
        if not all(self._waiting.values()):
            return
        for chunk in plan.chunks:
            request = self._requests[chunk.sequence_id]
            if chunk.sequence_id not in self._started:
                self._started.add(chunk.sequence_id)
                self._waiting[request.tenant] -= 1
            length = len(request.prompt_token_ids)
            inside = min(chunk.start + chunk.length, length) - min(chunk.start, length)
            self.service[request.tenant] += PROMPT_WEIGHT * inside + OUTPUT_WEIGHT * chunk.sample
        self.gap = max(self.gap, max(self.service.values()) - min(self.service.values()))
        self.max_held = max(self.max_held, sum(chunk.start + chunk.length for chunk in plan.chunks))

    @property
    def jain(self) -> float:
        total = sum(self.service.values())
        return total**2 / (len(self.service) * sum(value**2 for value in self.service.values()))

    @property
    def bound(self) -> float:
        """2·max(w_p·L, w_q·M), with the longest prompt and the most tokens that the batch really held."""
        longest = max(len(one.prompt_token_ids) for one in self._requests)
        return 2 * max(PROMPT_WEIGHT * longest, OUTPUT_WEIGHT * self.max_held)


def backlogged(kind: Kind, policy: str) -> Service:
    """Two tenants that send equally many requests, those of `long` four times longer; all wait from the start."""
    rng = random.Random(1)
    requests = [
        request(str(i), tenant, rng, size, kind.vocabulary)
        for i in range(kind.backlog // 2)
        for tenant, size in (("short", 1), ("long", 4))
    ]
    service = Service(requests)
    loop = kind.open(policy, service)
    drive(loop, requests)
    loop.close()
    return service


# -- a light tenant beside a flood --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visit:
    """Mean TTFT of a light tenant alone and, by policy, beside the flood; a full engine's mean step. Seconds."""

    alone: float
    beside: dict[str, float]
    step: float

    @property
    def limit(self) -> float:
        return 2 * self.alone + self.step


def typical(visits: list[Visit]) -> Visit:
    """Medians over repeats."""
    beside = {policy: statistics.median(one.beside[policy] for one in visits) for policy in visits[0].beside}
    return Visit(statistics.median(one.alone for one in visits), beside, statistics.median(one.step for one in visits))


def capacity(kind: Kind) -> tuple[float, float]:
    """Requests per second of a full engine, and the seconds of its steps (mean)."""
    rng = random.Random(2)
    loop = kind.open("fcfs", None)
    run = drive(loop, [request(str(i), "a", rng, 1, kind.vocabulary) for i in range(kind.backlog // 2)])
    steps = loop.stats().step
    loop.close()
    return len(run.outcomes) / run.seconds, run.seconds / steps


def light_beside_flood(kind: Kind, policies: tuple[str, ...]) -> Visit:
    """A light tenant at a tenth of capacity, beside a flood that came a little before it: taking that in takes time,
    too. Visits that came when it had dried up, because capacity was measured too low, do not count."""
    rate, step = capacity(kind)
    seconds = 10 * kind.visits / rate
    rng = random.Random(3)
    visits = takewhile(lambda at: at < seconds, poisson(random.Random(4), rate / 10))
    arrivals = (seconds / 20 + at for at in visits)
    light = [request(str(i), "light", rng, 1, kind.vocabulary, at) for i, at in zip(count(), arrivals, strict=False)]
    flood = [request(str(i), "flood", rng, 1, kind.vocabulary) for i in range(int(1.3 * rate * seconds))]

    def mean_ttft(policy: str, requests: list[Request]) -> float:
        loop = kind.open(policy, None)
        run = drive(loop, requests)
        loop.close()
        starts = [one.token_times[0] for one in run.outcomes if one.request.tenant == "flood"]
        mine = [
            one.ttft
            for one in run.outcomes
            if one.request.tenant == "light" and one.request.arrival < max(starts, default=math.inf)
        ]
        return statistics.mean(ttft for ttft in mine if ttft is not None)

    alone = mean_ttft("fair", light)
    return Visit(alone, {policy: mean_ttft(policy, flood + light) for policy in policies}, step)


def report(kinds: list[Kind]) -> str:
    shares: list[list[object]] = []
    visits: list[list[object]] = []
    for kind in kinds:
        for policy in ("fcfs", "fair"):
            found = backlogged(kind, policy)
            ratio = f"{found.service['long'] / found.service['short']:.3f}"
            shares.append([kind.name, policy, f"{found.jain:.4f}", ratio, f"{found.gap:,.0f}", f"{found.bound:,.0f}"])
        repeats = [light_beside_flood(kind, ("fcfs", "fair")) for _ in range(kind.repeats)]
        visit = typical(repeats)
        for policy, ttft in visit.beside.items():
            kept = sum(one.beside[policy] <= one.limit for one in repeats)
            cells = (visit.alone, visit.step, ttft, visit.limit)
            visits.append([kind.name, policy, *(f"{cell * 1e3:,.1f}" for cell in cells), f"{kept} of {len(repeats)}"])
    return "\n\n".join(
        [
            "Two backlogged tenants of equal weight, one with four times longer requests. Gap: the greatest difference "
            "in service at any step while both wait; bound: 2·max(w_p·L, w_q·M) with the longest prompt L and the most "
            "tokens M that the running batch really held.",
            table(["engine", "policy", "Jain index", "service long / short", "greatest gap", "bound"], shares),
            "A light tenant at 10 % of capacity beside one that floods: mean TTFT in ms, medians over repeats; kept: "
            "in how many of them.",
            table(
                ["engine", "policy", "alone", "mean step", "beside the flood", "limit: 2 × alone + a step", "kept"],
                visits,
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="also on the real engine, with the built-in model")
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, on the real engine")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = report(kinds(arguments.real, arguments.cpu_time))
    print(body)
    if arguments.write:
        command = "python -m benchmarks.fairness" + (" --real" if arguments.real else "")
        command += " --cpu-time" if arguments.cpu_time else ""
        write_section("fairness", "Fair share between tenants", command, body)


if __name__ == "__main__":
    main()
