"""Tuning: the settings of one engine that serve a demand best, found by trying, one setting at a time.

Goodput decides (requests per second that keep all SLOs), and among equals the SLO that is nearest to being
broken. Each setting is varied while the others stay (coordinate descent), so that every value in the end has been
compared with its variants, and the reason beside it is what those did. The best few may be run on the real engine,
which then has the last word, and tells whether the setting that the simulator chose is among the best there. Knows
trials, measured runs and what a wrong choice costs; who runs a real engine is handed in.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from inflight.config.setting import SettingsError
from inflight.core.strategies.chunked import EARLY_END
from inflight.metrics.slo import Slo, targets
from inflight.metrics.summary import Summary
from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.proposal import MOST_ROWS, Overrides, early_end, propose, step_limit
from inflight.planning.search import badness
from inflight.planning.simulation import Trial, try_out
from inflight.planning.sizing import Progress, check_steps, quiet, requests_for
from inflight.planning.steady import length, rows_at
from inflight.planning.traffic import Traffic
from inflight.workload.workload import Workload

Run = Callable[[EngineConfig], Summary]


@dataclass(frozen=True, slots=True)
class EvaluatedConfig:
    """One setting and what it did. measured: its runs on the real engine, none where it was not run there."""

    config: EngineConfig
    trial: Trial
    measured: tuple[Summary, ...] = ()

    @property
    def score(self) -> tuple[float, float]:
        """Goodput in requests/s, of those sent in the window; then how far the worst SLO is from being broken
        (more is better)."""
        return self.trial.summary.attained_per_s, -badness(self.trial)

    @property
    def goodput(self) -> float:
        """Measured, in requests/s: the median of the runs."""
        return statistics.median(one.attained_per_s for one in self.measured)


@dataclass(frozen=True, slots=True)
class Decision:
    """Settings that were simulated and measured. chosen: the one that the simulator prefers."""

    chosen: EvaluatedConfig
    judged: Sequence[EvaluatedConfig]

    @property
    def best(self) -> EvaluatedConfig:
        """As measured; the simulator's choice where it is as good."""
        return max((self.chosen, *self.judged), key=lambda one: one.goodput)

    @property
    def loss(self) -> float:
        """Share of the best measured goodput that the simulator's choice does not have."""
        best = self.best.goodput
        return 1 - self.chosen.goodput / best if best > 0 else 0.0

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, between simulated and measured goodput: 1 where both order the settings alike. None where one of
        them tells no settings apart."""
        simulated = ranks([one.trial.summary.attained_per_s for one in self.judged])
        measured = ranks([one.goodput for one in self.judged])
        try:
            return statistics.correlation(simulated, measured)
        except statistics.StatisticsError:
            return None


def ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [statistics.fmean(place for place, other in enumerate(ordered, 1) if other == value) for value in values]


def take_turns(
    chosen: Sequence[EvaluatedConfig], run: Run, repeats: int, progress: Callable[[str], None] = lambda sentence: None
) -> list[EvaluatedConfig]:
    """Each setting on the real engine, `repeats` times in turns (A B A B), so that a machine whose speed drifts drifts
    for all of them."""
    measured: list[list[Summary]] = [[] for _ in chosen]
    for repeat in range(repeats):
        for one, runs in zip(chosen, measured, strict=True):
            progress(f"On the real engine, run {repeat + 1} of {repeats}: {one.config}")
            runs.append(run(one.config))
            progress(
                f"  goodput {runs[-1].attained_per_s:.3g}/s ({runs[-1].attainment:.0%}), simulated "
                f"{one.trial.summary.attained_per_s:.3g}/s"
            )
    return [replace(one, measured=tuple(runs)) for one, runs in zip(chosen, measured, strict=True)]


def describe(trial: Trial) -> str:
    """The figures that decide."""
    parts = [f"goodput {trial.summary.attained_per_s:.3g}/s ({trial.summary.attainment:.0%})"]
    parts += [f"{slo.name} {value * 1e3:,.0f} ms" for slo, value in trial.values.items() if math.isfinite(value)]
    return ", ".join(parts) + (", saturated" if trial.saturated else "")


REQUESTS = 400
ROUNDS = 2  # through all settings; the second sees what the first changed
BETTER = 0.01  # of goodput that a change must bring
MOST_ALIKE = 0.8  # share of the settings
NEARER = 0.05  # of the worst SLO, where goodput is alike
SPAN = 10.0  # seconds of arrivals, where that is not more than four times the requests


@dataclass(frozen=True, slots=True)
class Tuning:
    """best: with reasons. tried: all settings, the best first. decision: what those did that ran on the real engine;
    None where none did. saturated: the demand is more than any setting serves."""

    best: EvaluatedConfig
    tried: Sequence[EvaluatedConfig]
    start: EvaluatedConfig
    decision: Decision | None = None

    @property
    def saturated(self) -> bool:
        return self.best.trial.saturated

    @property
    def alike(self) -> int:
        """Settings of those tried that serve this load as well as the best."""
        most = self.best.trial.summary.attained_per_s
        return sum(one.trial.summary.attained_per_s >= most * (1 - BETTER) for one in self.tried)

    @property
    def indifferent(self) -> bool:
        """Whether the load is so small that it hardly matters which setting serves it."""
        return not self.saturated and self.best.trial.met and self.alike >= MOST_ALIKE * len(self.tried)


@dataclass(frozen=True, slots=True)
class Check:
    """On the real engine. settings: so many of the best. repeats: of each, in turns."""

    run: Run
    settings: int = 3
    repeats: int = 1


class _Search:
    """Trials of settings under one demand, none made twice."""

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        measured: tuple[float, float],
        slos: tuple[Slo, ...],
        progress: Progress,
    ):
        self._machine, self._workload, self._measured, self._slos = machine, workload, measured, slos
        self._progress = progress
        self._known: dict[str, EvaluatedConfig] = {}
        self.expected = 1  # trials in all, about

    def trial(self, config: EngineConfig) -> EvaluatedConfig:
        key = _key(config)
        if key not in self._known:
            found = try_out(
                self._machine, config, self._workload, self._slos, targets=targets(self._slos), measured=self._measured
            )
            self._known[key] = EvaluatedConfig(config, found)
            number = len(self._known)
            self._progress(f"{number} of about {max(number, self.expected)}: {config}: {describe(found)}")
        return replace(self._known[key], config=config)

    @property
    def all(self) -> list[EvaluatedConfig]:
        return sorted(self._known.values(), key=lambda one: one.score, reverse=True)


def tune(
    machine: Machine,
    demand: Demand,
    traffic: Traffic,
    slos: tuple[Slo, ...],
    *,
    overrides: Overrides | None = None,
    requests: int | None = None,
    seed: int = 0,
    check: Check | None = None,
    progress: Progress = quiet,
) -> Tuning:
    """demand: of one engine. overrides: where to begin; what they fix stays. requests: that a trial reads, at least;
    None: as many as the promised percentiles need. check: the real engine, which then has the last word: the best
    measured setting wins.
    """
    fixed = overrides or Overrides()
    requests = max(REQUESTS, requests_for(slos).decisive) if requests is None else requests
    check_steps(fixed.max_num_batched_tokens, requests, traffic)
    proposal = propose(machine, traffic, slos, fixed)
    residents = rows_at(machine.model, traffic, demand.rate, proposal.config.max_num_seqs)
    run = length(residents, max(requests, SPAN * demand.rate), 4 * requests)
    search = _Search(machine, demand.workload(demand.rate, run.requests, seed), (run.begin, run.end), slos, progress)
    dimensions = list(_dimensions(machine, traffic, slos, fixed))
    search.expected = len({_key(one) for _, others in dimensions for one in others(proposal.config)})
    began = time.monotonic()
    start = best = search.trial(proposal.config)
    seconds = (time.monotonic() - began) * search.expected
    progress(
        f"About {search.expected} settings are tried, in {seconds:.0f} s or so; which ones, those before them say."
    )
    for round_number in range(ROUNDS):
        before = best.config
        for name, others in dimensions:
            if name == "preemption" and not best.trial.preemptions:
                best = replace(best, config=best.config.because(name, "the default; nobody was preempted"))
            else:
                best = _vary(search, best, name, list(others(best.config)))
        if round_number and _key(best.config) == _key(before):
            break
    tuning = Tuning(best, search.all, start)
    return tuning if check is None else _verified(tuning, check, progress)


# -- what is varied --------------------------------------------------------------------------------------------------

_Others = Callable[[EngineConfig], Iterator[EngineConfig]]


def _dimensions(
    machine: Machine, traffic: Traffic, slos: tuple[Slo, ...], overrides: Overrides
) -> Iterator[tuple[str, _Others]]:
    """Option name → the variants of a setting in it. What is fixed is left out."""
    yield "early-end-tokens", _early_ends  # before the strategies: a bad one would speak against chunked
    yield "strategy", lambda config: _strategies(config, slos, early_end(machine))
    if overrides.max_num_batched_tokens is None:
        yield "max-num-batched-tokens", _budgets
    if overrides.max_num_seqs is None:
        yield "max-num-seqs", lambda config: _rows(config, machine)
    if overrides.policy == "fcfs":
        yield "policy", lambda config: _policies(config, slos, traffic)
    if machine.host_blocks:
        yield "preemption", lambda config: _preemptions(config, machine)


def _strategies(config: EngineConfig, slos: tuple[Slo, ...], usual_end: int) -> Iterator[EngineConfig]:
    limit = step_limit(slos)
    for name in ("chunked", "continuous", "adaptive"):
        if name == "adaptive" and limit is None:
            continue
        target = limit if name == "adaptive" else None
        tokens = None if name == "continuous" else config.early_end_tokens
        scheduling = config.scheduling.but(strategy=name, itl_target=target, early_end_tokens=tokens)
        yield replace(config, scheduling=scheduling.ending_early(usual_end))


def _early_ends(config: EngineConfig) -> Iterator[EngineConfig]:
    if config.max_num_batched_tokens is not None and config.strategy != "continuous":
        for tokens in (0, EARLY_END, config.max_num_batched_tokens // 2):
            yield replace(config, scheduling=config.scheduling.but(early_end_tokens=tokens))


def _budgets(config: EngineConfig) -> Iterator[EngineConfig]:
    budget = config.max_num_batched_tokens
    if budget is not None and config.strategy != "continuous":
        for other in (budget // 4, budget // 2, budget * 2, budget * 4):
            if max(16, config.max_num_seqs) <= other <= 16384:
                yield replace(config, max_num_batched_tokens=other)


def _rows(config: EngineConfig, machine: Machine) -> Iterator[EngineConfig]:
    most = min(MOST_ROWS, machine.state_rows or MOST_ROWS, machine.tokens, config.max_num_batched_tokens or MOST_ROWS)
    for other in (config.max_num_seqs // 4, config.max_num_seqs // 2, config.max_num_seqs * 2):
        if 1 <= other <= most:
            yield replace(config, max_num_seqs=other)


def _policies(config: EngineConfig, slos: tuple[Slo, ...], traffic: Traffic) -> Iterator[EngineConfig]:
    names = ["fcfs", "sjf"]
    names += ["deadline"] if any(slo.metric in ("ttft", "itl", "itl_max") for slo in slos) else []
    names += ["prefix"] if traffic.shared > 0 else []
    for name in names:
        yield replace(config, scheduling=replace(config.scheduling, policy=name))


def _preemptions(config: EngineConfig, machine: Machine) -> Iterator[EngineConfig]:
    yield replace(config, scheduling=replace(config.scheduling, preemption="recompute", swap_space=None))
    for name in ("swap", "auto"):
        scheduling = replace(config.scheduling, preemption=name, swap_space=machine.swap_gib)
        yield replace(config, scheduling=scheduling)


def _vary(search: _Search, best: EvaluatedConfig, name: str, others: Sequence[EngineConfig]) -> EvaluatedConfig:
    """The best of a setting and its variants in one option, with what they did as the reason."""
    found = []
    for config in others:
        try:
            found.append(search.trial(config))
        except SettingsError:  # two settings that do not go together
            continue
    chosen = best
    for one in found:
        if _clearly_better(one, chosen):
            chosen = one
    rivals = [one for one in [best, *found] if _value(one.config, name) != _value(chosen.config, name)]
    if not rivals:
        return chosen
    against = "; ".join(f"{_value(one.config, name)}: {describe(one.trial)}" for one in rivals)
    return replace(chosen, config=chosen.config.because(name, f"{describe(chosen.trial)}; against {against}"))


def _clearly_better(one: EvaluatedConfig, other: EvaluatedConfig) -> bool:
    """Noise must not decide: the incumbent stays unless the other brings something that counts."""
    (goodput, distance), (old_goodput, old_distance) = one.score, other.score
    if goodput > old_goodput * (1 + BETTER):
        return True
    return goodput >= old_goodput * (1 - BETTER / 2) and distance > old_distance * (1 - NEARER)


def _key(config: EngineConfig) -> str:
    """The same for settings that differ in their reasons alone."""
    return repr(replace(config, reasons={}))


def _value(config: EngineConfig, name: str) -> object:
    option = config.options().get(name)
    return None if option is None else option.value


# -- on the real engine ----------------------------------------------------------------------------------------------


def _verified(tuning: Tuning, check: Check, progress: Progress) -> Tuning:
    """The best measured one wins, the simulator's choice where it is as good."""
    others = [one for one in tuning.tried if _key(one.config) != _key(tuning.best.config)]
    measured = take_turns([tuning.best, *others][: check.settings], check.run, check.repeats, progress)
    decision = Decision(measured[0], measured)
    winner = decision.best
    if winner is not decision.chosen:
        reason = (
            f"measured {winner.goodput:.3g}/s goodput on the real engine, the most of {len(measured)} settings; the "
            f"simulator's choice measured {decision.chosen.goodput:.3g}/s"
        )
        winner = replace(winner, config=winner.config.because("strategy", reason))
    return replace(tuning, best=winner, decision=decision)
