"""Whether the setting that the calibrated simulator prefers is one of the best on the real engine.

    python -m benchmarks.decision [--model built-in|qwen|tiny] [--step-model FILE] [--repeats N] [--write]

Calibrates (or takes a step model), and takes a load of 0.8 of what the closed form serves at most, with limits on TTFT
and TPOT that follow from the measured steps: 60 and 2 of them. (A limit on every single gap would judge the host's
hiccups: a step takes a millisecond or two.) Settings that differ in strategy, tokens a step, sequences and policy are
simulated under it, then run on the real engine in turns, with the same requests. The loss is the share of the best
measured goodput (medians) that the simulator's choice does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.comparison import log_line, options, publish, spread
from benchmarks.engines import Model
from benchmarks.results import table
from inflight.config.assembly import budget
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.slo import Slo, targets
from inflight.metrics.summary import Summary
from inflight.planning.demand import Drawn, traffic_of, with_targets
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine, calibrated_machine
from inflight.planning.simulation import measure_on, try_out
from inflight.planning.steady import Length, length, mixed_step, rows_at, steady_state
from inflight.planning.tuning import Decision, EvaluatedConfig, describe, take_turns
from inflight.simulate.calibrate import CalibrationTarget, calibrate
from inflight.simulate.fitted import FittedModel
from inflight.simulate.sources import read_step_model
from inflight.workload.lengths import Lognormal
from inflight.workload.workload import Workload

ROWS, NUM_BLOCKS, MODEL_LEN = 32, 2048, 1024
BUDGET = 96  # tokens of a step: the engine's own default on a CPU with 32 rows
SHARE = 0.8  # of what the closed form serves at most
SEED = 11  # of the judged traffic; calibration has its own
TTFT_STEPS, TPOT_STEPS = 60, 2  # limits, in mean steps at this load
ASKED = 0.05


@dataclass(frozen=True, slots=True)
class Load:
    """Record what is offered, and which part of it is read."""

    workload: Workload
    length: Length
    rate: float
    slos: tuple[Slo, ...]

    @property
    def read(self) -> tuple[float, float]:
        return self.length.begin, self.length.end


def settings() -> list[EngineConfig]:
    """Return the settings that people consider: one changed at a time, and the baselines of the field."""
    chunked = EngineConfig(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, enable_prefix_caching=False)
    steps = [replace(chunked, max_num_batched_tokens=tokens) for tokens in (32, 48, 192, 512)]
    rows = [replace(chunked, max_num_seqs=count) for count in (4, 8, 16)]
    shortest = replace(chunked, scheduling=SchedulingSettings.of(policy="sjf"))
    whole = replace(chunked, max_num_batched_tokens=512, scheduling=SchedulingSettings.of(strategy="continuous"))
    static = SchedulingSettings.of(strategy="static", batch_size=16, max_wait=0.5)
    together = replace(chunked, max_num_batched_tokens=None, scheduling=static)
    return [chunked, *steps, *rows, shortest, whole, together]


def load_for(machine: Machine, seconds: float) -> Load:
    """seconds: of arrivals in each run, fast ones included that only fill the batch."""
    demand = Drawn(1.0, Lognormal(60, 350, 500), Lognormal(40, 160, 300), longest=MODEL_LEN)
    traffic = traffic_of(demand)
    rate = SHARE * steady_state(machine.model, traffic, ROWS, BUDGET).requests_per_s
    residents = rows_at(machine.model, traffic, rate, ROWS)
    step = machine.model.seconds(mixed_step(traffic, residents, residents * traffic.input_mean / traffic.output_mean))
    slos = (Slo("ttft", TTFT_STEPS * step), Slo("tpot", TPOT_STEPS * step))
    run = length(residents, rate * seconds, rate * seconds)
    return Load(demand.workload(rate, run.requests, SEED), run, rate, slos)


def calibrated(model: Model, seconds: float) -> FittedModel:
    engine = EngineSettings(max_num_seqs=ROWS, max_model_len=model.max_model_len, num_blocks=NUM_BLOCKS)
    scheduling = SchedulingSettings()
    executor = model.executor(engine, scheduling)
    target = CalibrationTarget(executor, model.loop(engine, scheduling), budget(engine, scheduling), {})
    return calibrate(target, seconds, log_line)


def simulated(machine: Machine, load: Load) -> list[EvaluatedConfig]:
    """The setting that the simulator prefers first."""
    limits = targets(load.slos)
    found = []
    for config in settings():
        trial = try_out(machine, config, load.workload, load.slos, targets=limits, measured=load.read)
        log_line(f"simulated: {config}: {describe(trial)}")
        found.append(EvaluatedConfig(config, trial))
    return sorted(found, key=lambda one: one.score, reverse=True)


def real(model: Model, load: Load, config: EngineConfig) -> Summary:
    engine = replace(config.engine_settings(model.max_model_len), num_blocks=NUM_BLOCKS)
    loop = model.loop(engine, config.scheduling)
    return measure_on(loop, model.vocab_size, with_targets(load.workload, targets(load.slos)), load.read)


def report(name: str, fitted: FittedModel, load: Load, decision: Decision, repeats: int) -> str:
    head = [
        "setting",
        "simulated goodput, requests/s",
        "measured (least to greatest)",
        "attained: simulated",
        "measured",
    ]
    rows = [_row(one, decision) for one in decision.judged]
    correlation = decision.rank_correlation
    ranked = "all alike" if correlation is None else f"{correlation:.2f}"
    provenance = fitted.provenance
    error = None if provenance is None else provenance.held_out.get("all")
    held_out = "" if error is None else f" Steps that were not fitted are {error[0]:.1%} off on average."
    return "\n\n".join(
        [
            f"{name}; prompts lognormal (p50 60, p99 350), answers lognormal (p50 40, p99 160), Poisson arrivals at "
            f"{load.rate:.2f} requests/s, {SHARE:g} of what the closed form serves at most; "
            f"{' and '.join(f'{slo.metric.upper()} within {slo.limit * 1e3:,.1f} ms' for slo in load.slos)} are asked "
            f"of every request. {load.length.requests:,} requests a run, the same in all of them, "
            f"{repeats} real runs of each setting in turns.{held_out}",
            f"The simulator prefers *{decision.chosen.config}*; the best measured is *{decision.best.config}*. "
            f"**Loss of the simulator's choice: {decision.loss:.1%}** (asked: under {ASKED:.0%}). Rank correlation of "
            f"simulated and measured goodput (Spearman): {ranked}.",
            table(head, rows),
        ]
    )


def _row(one: EvaluatedConfig, decision: Decision) -> Sequence[object]:
    name = f"**{one.config}**" if one is decision.chosen else str(one.config)
    attained = spread([run.attainment * 100 for run in one.measured], 0, " %")
    summary = one.trial.summary
    goodputs = spread(run.attained_per_s for run in one.measured)
    return [name, f"{summary.attained_per_s:.2f}", goodputs, f"{summary.attainment:.0%}", attained]


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.set_defaults(model="built-in")
    parser.add_argument("--step-model", type=Path, help="from `inflight calibrate`, instead of calibrating")
    parser.add_argument("--calibrate-seconds", type=float, default=45, help="of calibration (default 45)")
    parser.add_argument("--seconds", type=float, default=4, help="of arrivals in each run (default 4)")
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, MODEL_LEN)
    given: Path | None = arguments.step_model
    fitted = calibrated(model, arguments.calibrate_seconds) if given is None else read_step_model(given)
    machine = calibrated_machine(fitted)
    load = load_for(machine, arguments.seconds)
    judged = take_turns(simulated(machine, load), lambda config: real(model, load, config), arguments.repeats, log_line)
    body = report(model.name, fitted, load, Decision(judged[0], judged), arguments.repeats)
    publish("decision", "The simulator's choice of settings", body, arguments.write)


if __name__ == "__main__":
    main()
