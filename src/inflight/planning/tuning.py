"""Tuning: find the settings of one engine that serve a demand best, by trials, one setting at a time.

Goodput decides (requests per second that meet all SLOs), and among equals the SLO that is nearest to being missed.
Each setting is varied while the others stay (coordinate descent), so that every value in the end has been compared with
its variants, whose figures are the reason beside it. The best few may be run on the real engine, whose goodput then
decides, and shows whether the simulator's choice is among the best there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from inflight.config.setting import SettingsError
from inflight.core.strategies.chunked import EARLY_END
from inflight.metrics.observation import Targets
from inflight.metrics.slo import Slo, targets
from inflight.metrics.summary import Summary
from inflight.planning.candidate import idle_prompt_seconds
from inflight.planning.decision import Check, Decision, EvaluatedConfig, describe, take_turns
from inflight.planning.demand import Demand, with_targets
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.proposal import MAX_ROWS, Overrides, budgets_of, early_end, propose, step_limit
from inflight.planning.rendering import per_second
from inflight.planning.simulation import Trial, try_out
from inflight.planning.stages import Progress, quiet
from inflight.planning.steady import length, rows_at
from inflight.planning.traffic import Traffic
from inflight.planning.trial_requests import check_steps, requests_for
from inflight.workload.workload import Workload

MIN_TRIAL_REQUESTS = 400
TUNING_ROUNDS = 2  # through all settings; the second sees what the first changed
BETTER = 0.01  # of goodput that a change must bring
ALIKE = 0.8  # share of the settings that must serve a load alike for it to be called so
NEARER = 0.05  # of the worst SLO, where goodput is alike
SPAN = 10.0  # seconds of arrivals, where that is not more than four times the requests
MIN_CHECKED_REQUESTS = 10.0  # of a run on the real engine

Dimension = tuple[str, Callable[[EngineConfig], Iterator[EngineConfig]]]  # an option, and variants of settings in it


@dataclass(frozen=True, slots=True)
class Tuning:
    """best: with reasons. tried: all settings, the best first. decision: of those on the real engine; None where none
    was run there."""

    best: EvaluatedConfig
    tried: Sequence[EvaluatedConfig]
    start: EvaluatedConfig
    decision: Decision | None = None

    @property
    def saturated(self) -> bool:
        """Whether the demand is more than any of the settings serves."""
        return self.best.trial.saturated

    @property
    def alike(self) -> int:
        """Return how many of the settings serve this load as well as the best."""
        best = self.best.trial.summary.attained_per_s
        return sum(one.trial.summary.attained_per_s >= best * (1 - BETTER) for one in self.tried)

    @property
    def indifferent(self) -> bool:
        """Whether the load is so small that nearly all settings serve it alike."""
        return not self.saturated and self.best.trial.met and self.alike >= ALIKE * len(self.tried)


class _Search:
    """Trials of settings by `trial`, each run once. expected: trials in all, about. trusts: whether a trial may win."""

    def __init__(self, trial: Callable[[EngineConfig], Trial], progress: Progress, trusts: Callable[[Trial], bool]):
        self._trial, self._progress, self.trusts, self.expected = trial, progress, trusts, 1
        self.known: dict[str, EvaluatedConfig] = {}

    def evaluate(self, config: EngineConfig) -> EvaluatedConfig:
        key = _key(config)
        if key not in self.known:
            found = self.known[key] = EvaluatedConfig(config, self._trial(config))
            number = len(self.known)
            self._progress(f"{number} of about {max(number, self.expected)}: {config}: {describe(found.trial)}")
        return replace(self.known[key], config=config)


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
    """Find the best settings of an engine for the demand on it.

    Args:
        machine, demand, traffic: Of one engine.
        slos: At least one.
        overrides: Settings that stay.
        requests: Measured in a trial, at least; None: as many as the SLOs' percentiles need.
        seed: Of the workload.
        check: The real engine, on which the best measured settings win.
        progress: Called with a sentence about each trial.
    """
    fixed, shares = overrides or Overrides(), {slo.traffic: demand.share_of(slo.traffic) for slo in slos}
    requests = max(MIN_TRIAL_REQUESTS, requests_for(slos, shares).decisive) if requests is None else requests
    check_steps(fixed.max_num_batched_tokens, requests, traffic)
    proposal = propose(machine, traffic, slos, fixed)
    offered = partial(_workload, machine, proposal.config, demand, traffic, seed)
    workload, measured = offered(max(requests, SPAN * demand.rate), 4 * requests)

    def trial(config: EngineConfig) -> Trial:
        return try_out(machine, config, workload, slos, targets=goodput_targets(slos), measured=measured)

    # The requests of real runs are drawn before the search, which an error in them would lose.
    verify = None if check is None else partial(_verify, check, _real_run(check, demand.rate, offered, slos), progress)
    tuning = search_settings(proposal.config, tuned_dimensions(machine, traffic, slos, fixed), trial, progress)
    return tuning if verify is None else verify(tuning)


def _real_run(
    check: Check,
    rate: float,
    offered: Callable[[float, float], tuple[Workload, tuple[float, float]]],
    slos: tuple[Slo, ...],
) -> Callable[[EngineConfig], Summary]:
    """Draw the requests of runs on the real engine, and return the function that runs settings with them."""
    requests = max(MIN_CHECKED_REQUESTS, check.seconds * rate)
    workload, measured = offered(requests, requests)
    if (limits := goodput_targets(slos)) is not None:
        workload = with_targets(workload, limits)
    return lambda config: check.run(config, workload, measured)


def _workload(
    machine: Machine,
    config: EngineConfig,
    demand: Demand,
    traffic: Traffic,
    seed: int,
    measured: float,
    max_requests: float,
) -> tuple[Workload, tuple[float, float]]:
    """Return the workload of all runs, and the shares of it that are measured: as a plan's, with the conversations that
    are open and after what warms up. Raises WorkloadError where too many are open.

    Args:
        machine, config: Of the engine.
        demand, traffic: On it.
        seed: Of the workload.
        measured: Requests that are measured, unless those that fill and drain the batch with them are too many.
        max_requests: Of these in all; a short trace has fewer.
    """
    residents = rows_at(machine.model, traffic, demand.rate, config.max_num_seqs)
    e2e = residents / demand.rate
    if isinstance(demand, Mixed) and demand.rate > demand.max_rate(e2e):
        raise demand.too_many_open()
    cold = idle_prompt_seconds(machine, config, traffic.input_mean)
    warm_up = demand.warm_up_requests(demand.rate, residents, cold)
    run = length(residents * demand.slowest, measured, min(max_requests, demand.max_requests), warm_up)
    return demand.started(e2e).workload(demand.rate, run.requests, seed), (run.begin, run.end)


def goodput_targets(slos: tuple[Slo, ...]) -> Targets | None:
    """Return the targets by which all requests are evaluated; None: those of their classes, which have SLOs of their
    own. Raises SloError where only some SLOs are of a class."""
    return None if slos and all(slo.traffic for slo in slos) else targets(slos)


def search_settings(
    start: EngineConfig,
    dimensions: Iterable[Dimension],
    trial: Callable[[EngineConfig], Trial],
    progress: Progress = quiet,
    trusts: Callable[[Trial], bool] = lambda trial: True,
) -> Tuning:
    """Vary one setting at a time, from `start` on, and return the best with its reasons.

    Args:
        dimensions: The settings that are varied.
        trial: Runs settings.
        progress: Called with a sentence about each trial.
        trusts: Whether a trial says enough for its settings to be chosen.
    """
    search, varied = _Search(trial, progress, trusts), list(dimensions)
    search.expected = len({_key(one) for _, others in varied for one in others(start)} | {_key(start)})
    began = time.monotonic()
    first = best = search.evaluate(start)
    seconds = (time.monotonic() - began) * search.expected
    progress(f"About {search.expected} settings are tried, in about {seconds:.0f} s, each chosen by those before it.")
    for round_number in range(TUNING_ROUNDS):
        before = best.config
        for name, others in varied:
            if name == "preemption" and not best.trial.preemptions:
                best = replace(best, config=best.config.because(name, "the default; no sequence was preempted"))
            else:
                best = _vary(search, best, name, others(best.config))
        if round_number and _key(best.config) == _key(before):
            break
    tried = sorted(search.known.values(), key=lambda one: one.score, reverse=True)
    return Tuning(best, tried, first)


# -- what is varied --------------------------------------------------------------------------------------------------


def tuned_dimensions(
    machine: Machine, traffic: Traffic, slos: tuple[Slo, ...], overrides: Overrides
) -> Iterator[Dimension]:
    """Yield each option that is not fixed, with the variants of settings in it."""
    yield "early-end-tokens", _early_ends  # before the strategies: a bad value would speak against chunked
    yield "strategy", lambda config: _strategies(config, slos, early_end(machine))
    if overrides.max_num_batched_tokens is None:
        yield "max-num-batched-tokens", lambda config: _budgets(config, machine)
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


def _budgets(config: EngineConfig, machine: Machine) -> Iterator[EngineConfig]:
    """Yield settings with other steps; no wider ones than memory was reckoned with, or than there are."""
    budget = config.max_num_batched_tokens
    if budget is not None and config.strategy != "continuous":
        for other in (budget // 4, budget // 2, budget * 2, budget * 4):
            if max(16, config.max_num_seqs) <= other <= max(budget, budgets_of(machine)[-1]):
                yield replace(config, max_num_batched_tokens=other)


def _rows(config: EngineConfig, machine: Machine) -> Iterator[EngineConfig]:
    most = min(MAX_ROWS, machine.state_rows or MAX_ROWS, machine.tokens, config.max_num_batched_tokens or MAX_ROWS)
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
    for name, space in (("recompute", None), ("swap", machine.swap_gib), ("auto", machine.swap_gib)):
        yield replace(config, scheduling=config.scheduling.but(preemption=name, swap_space=space))


def _vary(search: _Search, best: EvaluatedConfig, name: str, others: Iterator[EngineConfig]) -> EvaluatedConfig:
    """Return the best of settings and their variants in one option, with the figures of all as the reason."""
    found = []
    for config in others:
        try:
            found.append(search.evaluate(config))
        except SettingsError:  # two settings that do not go together
            continue
    chosen = best
    for one in found:
        if search.trusts(one.trial) and clearly_better(one, chosen):
            chosen = one
    rivals = [one for one in [best, *found] if _value(one.config, name) != _value(chosen.config, name)]
    if not rivals:
        return chosen
    against = "; ".join(f"{_value(one.config, name)}: {describe(one.trial)}" for one in rivals)
    return replace(chosen, config=chosen.config.because(name, f"{describe(chosen.trial)}; against {against}"))


def clearly_better(one: EvaluatedConfig, other: EvaluatedConfig) -> bool:
    """Whether a change is more than noise: the incumbent stays unless the other brings something that counts."""
    (goodput, distance), (old_goodput, old_distance) = one.score, other.score
    if goodput > old_goodput * (1 + BETTER):
        return True
    return goodput >= old_goodput * (1 - BETTER / 2) and distance > old_distance * (1 - NEARER)


def _key(config: EngineConfig) -> str:
    """Return the same for settings that differ in their reasons alone."""
    return repr(replace(config, reasons={}))


def _value(config: EngineConfig, name: str) -> object:
    option = config.options().get(name)
    return None if option is None else option.value


def _verify(check: Check, run: Callable[[EngineConfig], Summary], progress: Progress, tuning: Tuning) -> Tuning:
    """Return the best on the real engine, the simulator's choice where it is as good."""
    others = [one for one in tuning.tried if _key(one.config) != _key(tuning.best.config)]
    measured = take_turns([tuning.best, *others][: check.settings], run, check.repeats, progress)
    decision = Decision(measured[0], measured)
    winner = decision.best
    if winner is not decision.chosen:
        reason = (
            f"measured {per_second(winner.goodput)} goodput on the real engine, the highest of {len(measured)} "
            f"settings; the simulator's choice measured {per_second(decision.chosen.goodput)}"
        )
        winner = replace(winner, config=winner.config.because("strategy", reason))
    return replace(tuning, best=winner, decision=decision)
