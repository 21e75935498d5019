"""The sizing that docs/planning.md walks through: its trace, and its pictures.

    python -m benchmarks.sizing [--trace chat.csv] [--write]

The trace has the lengths of Azure's conversation trace of 2023 (Patel et al., "Splitwise", ISCA 2024) and an hour of
Poisson arrivals with a busy spell of seven minutes. `--write` draws into docs/pictures; all of it in virtual time.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from benchmarks.chart_pictures import photograph
from benchmarks.comparison import log_line
from inflight.metrics.slo import parse_slos
from inflight.models.known import read_model
from inflight.planning.curve import throughput_latency_curve
from inflight.planning.demand import Traced, fitting
from inflight.planning.machine import Hardware
from inflight.planning.parallelisms import machines_for
from inflight.planning.plan import Plan, plan
from inflight.planning.proposal import Overrides, propose
from inflight.planning.question import Question
from inflight.planning.simulation import try_out
from inflight.planning.traffic import analyze_traffic
from inflight.report.charts.chart import Chart, Key
from inflight.report.charts.distribution import Column, CurvePoint, curve, histogram
from inflight.report.charts.quantity import quantity
from inflight.simulate.hardware import find_gpu
from inflight.workload.lengths import Lognormal
from inflight.workload.workload import Entry, Workload

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SECONDS, CALM, BUSY = 3600.0, 5.4, 10.35  # of the trace; requests/s outside and inside of its busy spell
SPELL = (1500.0, 1920.0)
BEGAN = datetime(2026, 3, 2, 9, tzinfo=UTC)
SLO = "ttft=1500(p99),itl=150(p99)"
LOADS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1)  # of the highest rate that meets the SLOs
SHARES = ((0.1, "idle"), (0.5, "half"), (1.0, "full"))  # of the highest rate that meets the SLOs
# bottleneck → name and class of `charts.palette`
KINDS = {
    "bandwidth": ("reading memory", "s1"),
    "compute": ("arithmetic", "s2"),
    "launch": ("fixed costs", "s7"),
    "link": ("between GPUs", "s3"),
}


def trace() -> Workload:
    """As a trace file would give it."""
    prompts, answers, lengths = Lognormal(1020, 4142, 7000), Lognormal(129, 601, 1000), Random("lengths")
    entries = [Entry(time, prompts.draw(lengths), answers.draw(lengths)) for time in _times(Random("arrivals"))]
    return Workload(tuple(entries), "chat.csv")


def _times(rng: Random) -> Iterator[float]:
    now = 0.0
    while now < SECONDS:
        now += rng.expovariate(BUSY if SPELL[0] <= now < SPELL[1] else CALM)
        yield now


def write_trace(path: Path, workload: Workload) -> None:
    """In the form in which Azure publishes its own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        for one in workload.entries:
            time = BEGAN + timedelta(seconds=one.arrival)
            lines.writerow((f"{time:%Y-%m-%d %H:%M:%S.%f}0", one.prompt_tokens, one.output_tokens))


def question(workload: Workload) -> Question:
    model = read_model("llama-3-8b")
    taken = fitting(workload, model.default_model_len)
    traffic = analyze_traffic(taken)
    demand = Traced(taken, traffic.peak_rate, longest=model.default_model_len)
    hardware = Hardware(model=model, gpu=find_gpu("l40s"), price_per_hour=1.2)
    machines = machines_for(hardware, traffic.mean_context, traffic.longest).fitting
    return Question(machines=machines, demand=demand, slos=parse_slos([SLO]))


def curves(answer: Plan) -> Chart | None:
    """One replica at rising rates, with and without chunked prefill."""
    machine, demand = answer.chosen.machine, answer.question.demand
    rates = [share * answer.chosen.rate for share in LOADS]
    named = []
    for strategy in ("chunked", "continuous"):
        config = answer.config
        if strategy != config.strategy:
            overrides = Overrides(strategy=strategy)
            config = propose(machine, answer.traffic, answer.question.slos, overrides).config
        points = []
        for one in throughput_latency_curve(machine, config, demand, rates):
            log_line(f"{strategy}, {one.rate:.2f} requests/s: ITL p99 {one.itl and one.itl[2]}")
            if one.itl is not None:
                points.append(CurvePoint(f"{one.rate:.2f} requests/s", one.output_tokens_per_s, one.itl[2]))
        named.append((strategy, points))
    about = "A replica of Llama-3-8B on an L40S; each point a rate. The SLO is 150 ms."
    return curve("ITL p99 against throughput", about, named, ("output tokens/s of a replica", ""), ("ITL p99", "s"))


def bottlenecks(answer: Plan) -> Chart | None:
    """Draw where a step's time goes as the load grows."""
    columns = []
    for share, words in SHARES:
        rate = share * answer.chosen.rate
        trial = try_out(
            answer.chosen.machine,
            answer.config,
            answer.question.demand.workload(rate, 600, 1),
            measured=(0.3, 0.9),
        )
        spent = trial.spent
        parts = [
            sum(part for (_, by), part in spent.by_kind.items() if by == bound) * spent.step_seconds for bound in KINDS
        ]
        columns.append(Column(f"{words}: {rate:.1f}/s", parts, quantity(sum(parts), "s")))
    keys = [Key(name, class_, "area") for name, class_ in KINDS.values()]
    about = "The mean step of a replica."
    return histogram("Where a step's time goes", about, columns, keys, "requests per second", ("time", "s"))


def sensitivity(answer: Plan) -> Chart | None:
    """Draw TTFT p99 of the planned replicas under other traffic."""
    slo = answer.question.slos[0]
    trials = [("as planned", answer.trial), *((one.name, one.trial) for one in answer.changes)]
    values = [(name, trial.values[slo]) for name, trial in trials if not trial.saturated]
    columns = [Column(name.partition(" (")[0], (value,), quantity(value, "s")) for name, value in values]
    grown = ", ".join(name for name, trial in trials if trial.saturated)
    about = f"{answer.replicas} replicas, sized for {answer.question.demand.rate:.2f} requests/s; the SLO is {slo}."
    saturated = f" Without a column, because the queue grows without end: {grown}." if grown else ""
    keys = [Key("TTFT p99", "s1", "area")]
    return histogram("What would change it", about + saturated, columns, keys, "traffic", ("TTFT p99", "s"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="write the trace here (CSV)")
    parser.add_argument("--write", action="store_true", help="draw the pictures of docs/planning.md")
    arguments = parser.parse_args()
    workload = trace()
    if arguments.trace is not None:
        write_trace(arguments.trace, workload)
        log_line(f"{arguments.trace}: {len(workload.entries):,} requests")
    if arguments.write:
        answer = plan(question(workload), progress=log_line)
        assert isinstance(answer, Plan)
        for name, figure in (
            ("curve", curves(answer)),
            ("bottleneck", bottlenecks(answer)),
            ("changes", sensitivity(answer)),
        ):
            assert figure is not None
            photograph(PICTURES / f"planning-{name}.png", figure.title, [figure])


if __name__ == "__main__":
    main()
