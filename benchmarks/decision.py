"""Whether the setting that the calibrated simulator prefers is one of the best on the real engine.

    python -m benchmarks.decision [--model smollm2] [--seconds S] [--repeats N] [--tries N] [--write]

Eight settings of one engine serve two classes of traffic: a chat whose prompts begin alike, and a batch lane. Prefix
cache, lanes and speculation are on, and each is off in one setting. Prompts are pieces of this repository's pages, so
that drafts are right as often as in text. All is measured before any setting is judged: the steps (`inflight
calibrate`), and, on other prompts of the same traffic, how often drafts are right. The load is 0.9 of what the closed
form serves at most, with the limits on TTFT and TPOT that 97 of 100 chats keep in the simulation of the base setting
(tighter ones would judge how fast the machine is today: simulated with steps 5 % longer or shorter, the settings keep
their order under these). All settings are simulated, then run on the real engine in turns, with the same requests,
again where the machine was disturbed (benchmarks/undisturbed.py). The loss is the share of the best measured goodput
(medians) that the simulator's choice lacks.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.comparison import log_line, publish, spread
from benchmarks.results import table
from benchmarks.undisturbed import TRIES, UndisturbedRuns, driven, lone_tpot
from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.metrics.definitions import quantile
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Summary
from inflight.planning.decision import Decision, EvaluatedConfig, describe, take_turns
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine, calibrated_machine
from inflight.planning.simulation import Topology, read_off, simulate_run, try_out
from inflight.planning.steady import Length, length, rows_at, steady_state
from inflight.planning.traffic import analyze_traffic
from inflight.records.schema import RecordError, StepRecord, of_kind, read_records
from inflight.simulate.calibrate import CalibrationTarget, calibrate
from inflight.simulate.drafting import SimulatedDrafts, acceptance_of
from inflight.simulate.fitted import FittedModel
from inflight.simulate.steps import rounds, timed_steps
from inflight.workload.arrivals import Poisson
from inflight.workload.classes import SharedPrefixes, TrafficClass
from inflight.workload.driving import Driver, core_request
from inflight.workload.lengths import Lognormal
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, Workload

ROWS, BUDGET, NUM_BLOCKS, MODEL_LEN = 16, 128, 2048, 1024
Named = dict[str, EvaluatedConfig]
SHARE, DRAFT_SHARE = 0.9, 0.3  # of what the closed form serves at most: the judged load, and that for drafts
DRAFT_REQUESTS = 150
SEED, DRAFT_SEED = 11, 12  # of the judged traffic, and of that which shows how often drafts are right
KEPT = 0.97  # share of the chats that keep each limit in the simulation of the base setting
BATCH_SECONDS = 30.0  # in which a batch request is to end
PAGES = Path(__file__).parent.parent / "docs"
ASKED_LOSS, ASKED_CORRELATION = 0.03, 0.9

CHAT = TrafficClass(
    name="chat",
    share=0.75,
    input=Lognormal(30, 150, 300),
    output=Lognormal(40, 150, 250),
    prefix=SharedPrefixes(system_tokens=128, groups=6, group_tokens=64, skew=1.0),
)
BATCH = TrafficClass(
    name="batch", share=0.25, input=Lognormal(100, 300, 400), output=Lognormal(60, 200, 250), lane="batch"
)


def settings() -> dict[str, EngineConfig]:
    """Return the base setting first, and the others, in each of which one thing differs."""
    base = EngineConfig(
        max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, scheduling=SchedulingSettings.of(speculation="suffix")
    )
    chosen = base.scheduling
    one_lane = {"batch": {"background": False}}
    return {
        "base": base,
        "no prefix cache": replace(base, enable_prefix_caching=False),
        "no speculation": replace(base, scheduling=chosen.but(speculation="off")),
        "batch in the foreground": replace(base, scheduling=replace(chosen, lanes=one_lane)),
        "two fifths for the batch lane": replace(base, scheduling=replace(chosen, lane_floor=0.4)),
        "3 sequences": replace(base, max_num_seqs=3),
        "shortest first": replace(base, scheduling=chosen.but(policy="sjf")),
        "whole prompts": replace(base, max_num_batched_tokens=512, scheduling=chosen.but(strategy="continuous")),
    }


class Texts:
    """Prompts that are pieces of the pages, equal where a workload's contents are."""

    def __init__(self, tokens: Sequence[int]):
        self._tokens = tuple(tokens)

    @classmethod
    def of(cls, real: RealEngines) -> Texts:
        engine = real.open(settings()["base"])
        try:
            assert engine.tokenizer is not None, "the model has a tokenizer"
            pages = (page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
            return cls(engine.tokenizer.encode("\n\n".join(pages)))
        finally:
            engine.loop.close()

    def filled(self, workload: Workload, seed: int) -> Workload:
        """Return the workload with the tokens of its prompts."""
        entries = (self._filled(entry, f"{seed}/{index}") for index, entry in enumerate(workload.entries))
        return replace(workload, entries=tuple(entries))

    def _filled(self, entry: Entry, name: str) -> Entry:
        shared = [token for content in entry.prefix for token in self._piece(str(content), entry.block_size)]
        own = self._piece(name, entry.prompt_tokens - len(shared))
        return replace(entry, prompt=(*shared, *own), prefix=(), block_size=0)

    def _piece(self, name: str, tokens: int) -> tuple[int, ...]:
        start = random.Random(name).randrange(len(self._tokens) - tokens)
        return self._tokens[start : start + tokens]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests that are offered, and the part of the run that is read."""

    workload: Workload
    length: Length
    rate: float
    targets: Targets  # of chats

    @property
    def read(self) -> tuple[float, float]:
        return self.length.begin, self.length.end

    def describe(self) -> str:
        assert self.targets.ttft is not None and self.targets.tpot is not None
        return (
            f"Poisson arrivals at {self.rate:.2f} requests/s, {SHARE:g} of what the closed form serves at most: chats "
            f"({CHAT}) within {self.targets.ttft * 1e3:,.0f} ms to the first token and {self.targets.tpot * 1e3:,.1f} "
            f"ms a token, and a batch lane ({BATCH}) within {BATCH_SECONDS:g} s. {self.length.requests:,} requests a "
            "run, the same in all of them"
        )


class RealEngines:
    """The model in an engine of its own for every run, all with the same memory."""

    def __init__(self, model: str, tries: int):
        self.name = model
        self._settings = EngineSettings(model=model, num_blocks=NUM_BLOCKS, max_model_len=MODEL_LEN)
        self.runs = UndisturbedRuns(self._lone_tpot, tries)

    def open(self, config: EngineConfig, record: Path | None = None) -> Engine:
        """Open an engine that has computed one short request: memory is touched for the first time then."""
        settings = replace(
            config.engine_settings(MODEL_LEN, "cpu"), model=self._settings.model, num_blocks=self._settings.num_blocks
        )
        engine = build_engine(settings, config.scheduling, record)
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        engine.loop.add(Request(request_id="warm", prompt_token_ids=tuple(range(32)), params=params))
        engine.loop.run()
        return engine

    def calibrated(self, seconds: float) -> FittedModel:
        return self.runs.calibrate(lambda: self._calibrated(seconds))

    def _calibrated(self, seconds: float) -> FittedModel:
        config = settings()["no speculation"]
        engine = self.open(config)
        try:
            values = {name: entry.value for name, entry in engine.settings.items()}
            budget = int(values["max_num_batched_tokens"])
            target = CalibrationTarget(engine.executor, engine.loop, budget, values, engine.kv_bytes_per_token)
            return calibrate(target, seconds, log_line)
        finally:
            engine.loop.close()

    def _lone_tpot(self) -> float:
        engine = self.open(settings()["no speculation"])
        try:
            return lone_tpot(engine.loop)
        finally:
            engine.loop.close()

    def run(self, config: EngineConfig, workload: Workload, read: tuple[float, float]) -> Summary:
        return self.runs.run(lambda: self._run(config, workload, read, None))

    def recorded(self, config: EngineConfig, workload: Workload) -> list[StepRecord]:
        """Run a workload, and return its steps."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.jsonl"
            self._run(config, workload, (0.0, 1.0), path)
            return of_kind(list(read_records(path)), "step")

    def _run(
        self, config: EngineConfig, workload: Workload, read: tuple[float, float], record: Path | None
    ) -> tuple[Summary, float]:
        engine = self.open(config, record)

        def request(index: int, arrival: float) -> Request:
            prompt = workload.entries[index].prompt
            assert isinstance(prompt, tuple), "prompts are filled"
            return core_request(workload.entries[index], str(index), prompt, arrival)

        gc.collect()
        gc.freeze()  # as the server does
        try:
            observations, waited = driven(Driver(engine.loop, workload, request))
        finally:
            gc.unfreeze()
            engine.loop.close()
        return read_off(observations, read)[0], waited


def drawn(rate: float, requests: int, seed: int, chat: Targets) -> Workload:
    classes = [replace(CHAT, targets=chat), replace(BATCH, targets=Targets(e2e=BATCH_SECONDS))]
    return synthesize(classes, arrivals=Poisson(rate), requests=requests, seed=seed)


@dataclass(frozen=True, slots=True)
class MeasuredDrafts:
    """model: how often drafts are right. steps: with drafts. bias: modelled over measured seconds of these, less 1; the
    step model was fitted on steps without drafts."""

    model: SimulatedDrafts
    steps: int
    bias: float


def measured_drafts(real: RealEngines, machine: Machine, texts: Texts) -> MeasuredDrafts:
    """Measure how often drafts are right, on other prompts of the same traffic, at little load: a busy engine tries
    only what it believes in."""
    traffic = analyze_traffic(drawn(1.0, 1000, DRAFT_SEED, Targets()))
    rate = DRAFT_SHARE * steady_state(machine.model, traffic, ROWS, BUDGET).requests_per_s
    workload = texts.filled(drawn(rate, DRAFT_REQUESTS, DRAFT_SEED, Targets()), DRAFT_SEED)
    return drafts_in(real.recorded(settings()["base"], workload), machine, f"a run at {rate:.2f} requests/s")


def drafts_in(steps: Sequence[StepRecord], machine: Machine, source: str) -> MeasuredDrafts:
    """Return how often the drafts of recorded steps were right. source: their name. Raises RecordError for too few."""
    model = SimulatedDrafts(acceptance_of(steps, source))
    drafted = [
        one for one in rounds(timed_steps(steps)) if one.features.tokens == one.features.samples > one.features.rows
    ]
    if not drafted:
        raise RecordError(
            f"{source} has drafts only in steps that compute prompts, too, so that the time of a step with drafts is "
            "not known; measure again on a quieter machine."
        )
    modelled = sum(machine.model.seconds(one.features) for one in drafted)
    return MeasuredDrafts(model, len(drafted), modelled / sum(one.seconds for one in drafted) - 1)


def load_for(machine: Machine, seconds: float, texts: Texts, drafts: SimulatedDrafts) -> Load:
    """Return the judged load, with the limits that the base setting keeps in simulation. seconds: of arrivals in each
    run."""
    base = settings()["base"]
    traffic = analyze_traffic(drawn(1.0, 1000, SEED, Targets()))
    rate = SHARE * steady_state(machine.model, traffic, ROWS, BUDGET).requests_per_s
    run = length(rows_at(machine.model, traffic, rate, ROWS), rate * seconds, rate * seconds)
    alone = texts.filled(drawn(rate, run.requests, SEED, Targets()), SEED)
    observations = simulate_run(machine, base, alone, machine.model, Topology(drafts=drafts)).observations
    read = read_off(observations, (run.begin, run.end))[1]
    chats = [one for one, entry in zip(observations, alone.entries, strict=True) if not entry.lane and one in read]
    limits = (sorted(value for one in chats if (value := getattr(one, name)) is not None) for name in ("ttft", "tpot"))
    targets = Targets(*(quantile(one, KEPT) for one in limits))
    return Load(texts.filled(drawn(rate, run.requests, SEED, targets), SEED), run, rate, targets)


def simulated(machine: Machine, config: EngineConfig, load: Load, drafts: SimulatedDrafts) -> EvaluatedConfig:
    topology = Topology(drafts=drafts if config.scheduling.draft_source.kind != "off" else None)
    trial = try_out(machine, config, load.workload, topology=topology, measured=load.read)
    return EvaluatedConfig(config, trial)


def distinct(judged: Sequence[EvaluatedConfig]) -> list[EvaluatedConfig]:
    """Return the most settings of which no two have measured spreads that overlap."""
    found: list[EvaluatedConfig] = []
    for one in sorted(judged, key=lambda one: max(run.attained_per_s for run in one.measured)):
        least = min(run.attained_per_s for run in one.measured)
        if not found or least > max(run.attained_per_s for run in found[-1].measured):
            found.append(one)
    return found


def report(real: RealEngines, fitted: FittedModel, load: Load, drafts: MeasuredDrafts, judged: Named) -> str:
    decision = Decision(max(judged.values(), key=lambda one: one.score), list(judged.values()))
    names = {id(one): name for name, one in judged.items()}
    ranked = distinct(decision.judged)
    correlations = [one if one is None else f"{one:.2f}" for one in (decision.rank_correlation, correlation(ranked))]
    provenance = fitted.provenance
    error = None if provenance is None else provenance.held_out.get("all")
    held_out = "" if error is None else f" Steps that were not fitted are {error[0]:.1%} off on average."
    head = ["setting", "simulated goodput, requests/s", "measured (least to greatest)", "attained: simulated"]
    head += ["measured", "prompts cached: simulated", "measured"]
    return "\n\n".join(
        [
            f"{real.name}, {load.describe()}, {len(decision.chosen.measured)} real runs of each setting in turns."
            f"{held_out} Drafts are right as often as {drafts.model.acceptance.source} were; its {drafts.steps:,} "
            f"steps with drafts are modelled {drafts.bias:+.1%} off. {real.runs.describe()}",
            f"The simulator prefers *{names[id(decision.chosen)]}*; the best measured is *{names[id(decision.best)]}*. "
            f"**Loss of the simulator's choice: {decision.loss:.1%}** (asked: at most {ASKED_LOSS:.0%}). Rank "
            f"correlation of simulated and measured goodput (Spearman): **{correlations[0]}** (asked: "
            f"{ASKED_CORRELATION:g}); of the {len(ranked)} settings whose measured spreads do not overlap: "
            f"{correlations[1]}.",
            table(head, [_row(names[id(one)], one, decision) for one in decision.judged]),
        ]
    )


def correlation(judged: Sequence[EvaluatedConfig]) -> float | None:
    """Return Spearman's correlation; None of fewer than two, or where one of both is the same for all."""
    return Decision(judged[0], judged).rank_correlation if len(judged) > 1 else None


def _row(name: str, one: EvaluatedConfig, decision: Decision) -> Sequence[object]:
    summary = one.trial.summary
    return [
        f"**{name}**" if one is decision.chosen else name,
        f"{summary.attained_per_s:.2f}",
        spread(run.attained_per_s for run in one.measured),
        f"{summary.attainment:.0%}",
        spread([run.attainment * 100 for run in one.measured], 0, " %"),
        f"{one.trial.cached:.0%}",
        f"{statistics.median(run.cached_tokens / max(1, run.prompt_tokens) for run in one.measured):.0%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="(default smollm2)")
    parser.add_argument("--calibrate-seconds", type=float, default=100, help="of calibration (default 100)")
    parser.add_argument("--seconds", type=float, default=40, help="of arrivals in each run (default 40)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds through all settings (default 3)")
    parser.add_argument(
        "--tries", type=int, default=TRIES, help=f"at most, of the calibration and of a real run (default {TRIES})"
    )
    parser.add_argument("--write", action="store_true", help="write the section of docs/results")
    arguments = parser.parse_args()
    real = RealEngines(arguments.model, arguments.tries)
    fitted = real.calibrated(arguments.calibrate_seconds)
    machine, texts = calibrated_machine(fitted), Texts.of(real)
    try:
        drafts = measured_drafts(real, machine, texts)
    except RecordError as error:
        raise SystemExit(str(error)) from None
    load = load_for(machine, arguments.seconds, texts, drafts.model)
    log_line(load.describe())
    judged: dict[str, EvaluatedConfig] = {}
    for name, config in settings().items():
        judged[name] = simulated(machine, config, load, drafts.model)
        log_line(f"simulated: {name}: {describe(judged[name].trial)}")
    runs = take_turns(
        list(judged.values()), lambda config: real.run(config, load.workload, load.read), arguments.repeats, log_line
    )
    judged = dict(zip(judged, runs, strict=True))
    publish(
        "decision", "The simulator's choice of settings", report(real, fitted, load, drafts, judged), arguments.write
    )


if __name__ == "__main__":
    main()
