"""Policies on three public traces: goodput, tails and fairness, five stretches of each trace, simulated.

Llama 3.1 8B on an H100 by its data sheet, with the real scheduler, by `inflight lab`. Each trace is offered so fast
that first come, first served falls behind its targets; all contenders have the same requests.

    python -m benchmarks.policy_table --traces FOLDER [--seeds 5] [--write]
    python -m benchmarks.policy_table --step-model machine.json --model smollm2 [--repeats 2] [--write]

The second command has contenders run on this machine's engine, and in simulation on the same requests: how far both
agree on their order. The step model is that of `inflight calibrate` with the same model.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import table, write_section
from inflight.cli import call
from inflight.cli.bench_options import INPUT, OUTPUT
from inflight.cli.lab_runs import REAL, SIMULATED
from inflight.planning.steady import steady_state
from inflight.planning.traffic import analyze_traffic
from inflight.report.standings import rank_correlation
from inflight.simulate.sources import read_step_model
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import parse_lengths
from inflight.workload.synthetic import synthesize

MACHINE = "--model llama-3.1-8b --hardware h100"
CONTENDERS = (
    *("fcfs", "sjf", "hrrn", "deadline", "prefix", "program", "adaptive"),
    "--setting 'sjf, oracle=--policy sjf --predictor oracle'",
    "--setting 'slack=--strategy slack'",
    "--setting 'slack, deadline=--strategy slack --policy deadline'",
)


class PublicTrace(NamedTuple):
    """A trace, as it is offered. seconds: of a stretch, on the trace's clock. ttft, tpot: targets, milliseconds."""

    file: str
    title: str
    speed: float
    seconds: int
    ttft: int
    tpot: int

    def options(self, folder: str) -> str:
        return (
            f"--trace {folder}/{self.file} --trace-seconds {self.seconds} --speed {self.speed:g} "
            f"--slo ttft={self.ttft} --slo tpot={self.tpot}"
        )


TRACES = (
    PublicTrace("azure_conv.csv", "Azure, conversations", 4.5, 110, 1000, 50),
    PublicTrace("azure_code.csv", "Azure, code", 2.2, 250, 2000, 80),
    PublicTrace("mooncake_conversation_trace.jsonl", "Mooncake, conversations", 0.3, 130, 10_000, 80),
)
ENGINE_LOAD, ENGINE_SECONDS = 1.0, 40  # of what the closed form serves at most; of arrivals
TTFT_STEPS, TPOT_STEPS = 40, 1.5  # targets, in steps at that load
ENGINE_CONTENDERS = (
    *("fcfs", "sjf", "deadline", "hrrn"),
    "--setting 'sjf, oracle=--policy sjf --predictor oracle'",
    "--setting 'slack=--strategy slack'",
    "--setting 'static=--strategy static'",
)
FIGURES = ("attainment", "ttft_p99", "tpot_p99", "e2e_p99", "e2e_mean", "fairness")
HEAD = ("policy", "goodput, requests/s", "× fcfs (95 %)", "attained", "TTFT p99, s", "TPOT p99, ms", "E2E p99, s")


def measure(options: str) -> list[dict[str, Any]]:
    """Return the standings of `inflight lab`."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert call(shlex.split(f"lab {options} --json")) == 0
    found: list[dict[str, Any]] = json.loads(out.getvalue())["standings"]
    return found


def line(one: dict[str, Any]) -> list[str]:
    """Return the row of one contender."""
    mean = {key: value["mean"] for key, value in one["figures"].items()}
    ratio = one["ratio"]
    shown = "-"
    if ratio is not None:
        shown = f"{ratio['mean']:.2f}"
        if ratio["low"] is not None:
            shown += f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return [
        f"{one['contender']}{' **best**' if one['is_best'] else ''}",
        f"{mean['goodput']:.2f}",
        shown,
        f"{mean['attainment']:.1%}",
        f"{mean['ttft_p99']:.2f}",
        f"{mean['tpot_p99'] * 1e3:.0f}",
        f"{mean['e2e_p99']:.1f}",
        f"{mean['e2e_mean']:.1f}",
        f"{mean['fairness']:.2f}",
    ]


def report(folder: str, seeds: int) -> str:
    parts = []
    for trace in TRACES:
        options = f"{' '.join(CONTENDERS)} {MACHINE} {trace.options(folder)} --seeds {seeds}"
        rows = [line(one) for one in measure(options)]
        parts.append(
            f"### {trace.title}\n\n{trace.speed:g} times its speed, {seeds} stretches of {trace.seconds} s; a first "
            f"token within {trace.ttft:,} ms, {trace.tpot} ms a token.\n\n"
            + table((*HEAD, "E2E mean, s", "fairness"), rows)
        )
    parts.append(
        "Fairness is Jain's index of seconds per output token over requests, since these traces name no tenants. "
        "`prefix` and `program` are at home where requests share prefixes or name programs."
    )
    return "\n\n".join(parts)


def engine_options(step_model: Path) -> str:
    """Return the load and the targets for the engine that a step model was measured on."""
    model = read_step_model(step_model)
    assert model.provenance is not None, "it was calibrated"
    rows, budget = (int(model.provenance.settings[name]) for name in ("max_num_seqs", "max_num_batched_tokens"))
    kind = TrafficClass(name="", share=1.0, input=parse_lengths(INPUT), output=parse_lengths(OUTPUT))
    traffic = analyze_traffic(synthesize([kind], arrivals=Poisson(1.0), requests=2000))
    steady = steady_state(model, traffic, rows, budget)
    ttft, tpot = (round(1e3 * steps * steady.step_seconds) for steps in (TTFT_STEPS, TPOT_STEPS))
    rate = ENGINE_LOAD * steady.requests_per_s
    return f"--rate {rate:.3g} --duration {ENGINE_SECONDS} --slo ttft={ttft},tpot={tpot}"


def agreement(step_model: Path, model: str, repeats: int) -> str:
    """Run the contenders on the engine and in simulation; return a table of both, and their rank correlations."""
    options = engine_options(step_model)
    chosen = f"{' '.join(ENGINE_CONTENDERS)} {options} --seeds 1 --verify {len(ENGINE_CONTENDERS) - 1}"
    engine = f"--step-model {shlex.quote(str(step_model))} --model {shlex.quote(model)} --verify-repeats {repeats}"
    means: dict[str, dict[str, dict[str, float]]] = {SIMULATED: {}, REAL: {}}
    for one in measure(f"{chosen} {engine}"):
        if one["load"] in means:
            means[one["load"]][one["contender"]] = {key: value["mean"] for key, value in one["figures"].items()}
    simulated, real = means[SIMULATED], means[REAL]
    rows = [
        [name, *(f"{each[name]['goodput']:.2f}" for each in (simulated, real))]
        + [f"{each[name]['attainment']:.0%}" for each in (simulated, real)]
        + [f"{each[name][key]:.2f}" for key in ("ttft_p99", "e2e_mean") for each in (simulated, real)]
        for name in simulated
    ]
    head = ["contender", "goodput simulated, requests/s", "engine", "attained simulated", "engine"]
    head += ["TTFT p99 simulated, s", "engine", "E2E mean simulated, s", "engine"]
    ranks = {
        title: rank_correlation([simulated[name][key] for name in simulated], [real[name][key] for name in simulated])
        for title, key in (("goodput", "goodput"), ("mean E2E", "e2e_mean"), ("TTFT p99", "ttft_p99"))
    }
    shown = ", ".join(f"{value:.2f} by {title}" for title, value in ranks.items() if value is not None)
    return (
        f"{model}, `inflight lab {options}`, {repeats} runs of each on the engine, in turns, and the same "
        f"requests in simulation. Rank correlation: {shown}.\n\n{table(head, rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of the traces")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--step-model", type=Path, help="of this machine: run on its engine instead")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if (arguments.traces is None) == (arguments.step_model is None):
        parser.error("give either --traces or --step-model")
    if arguments.step_model is not None:
        subject, title = "policy_table real", "Policies on a real engine and in its simulation"
        command = f"--step-model machine.json --model {arguments.model} --repeats {arguments.repeats}"
        body = agreement(arguments.step_model, arguments.model, arguments.repeats)
    else:
        subject, title = "policy_table", "Policies on public traces"
        command, body = f"--traces FOLDER --seeds {arguments.seeds}", report(str(arguments.traces), arguments.seeds)
    print(body)
    if arguments.write:
        write_section(subject, title, f"python -m benchmarks.policy_table {command}", body)


if __name__ == "__main__":
    main()
