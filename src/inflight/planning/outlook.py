"""Alternatives to a plan, each by trials: other traffic, other batching strategies, other routers, speculation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inflight.config.speculation import DraftSource
from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.demand import Demand, Traced
from inflight.planning.engine_config import TOGETHER
from inflight.planning.load import asks_for_sessions, conversations_of
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.proposal import step_limit
from inflight.planning.question import THOROUGHLY, Question
from inflight.planning.search import TRICKLE, Capacity, find_capacity
from inflight.planning.simulation import ROUTER, Drafted, Topology, Trial
from inflight.planning.sizing import ROUGH, candidate_for, measure
from inflight.planning.trial_runner import AFFINE, PLANNED_SEED, ROUGHLY, TrialRunner
from inflight.planning.yardstick import Yardstick, beside
from inflight.simulate.drafting import SimulatedDrafts

OF_ANSWERS = "answers half as long again"  # which vectors are not
OF_ARRIVALS = "arrivals clumped twice as much (CV doubled)"  # which conversations that are open all the time have none
MORE, MORE_BY = "20 % more requests", 1.2


def _with_more(demand: Demand) -> Demand:
    """Return the demand with more requests/s, or with as many more open conversations."""
    more = replace(demand, rate=demand.rate * MORE_BY)
    return replace(more, sessions=more.sessions * MORE_BY) if isinstance(more, Mixed) and more.sessions else more


CHANGES: Mapping[str, Callable[[Demand], Demand]] = {
    MORE: _with_more,
    OF_ANSWERS: lambda one: replace(one, stretch=one.stretch * 1.5),
    "prompts half as long again": lambda one: replace(one, prompt_stretch=one.prompt_stretch * 1.5),
    OF_ARRIVALS: lambda one: one.burstier(4.0),
}
ROUTERS = ("round-robin", ROUTER, "prefix-aware")
MIN_SHARED = 0.01  # of the prompts' tokens that earlier ones had: below, neither routers nor tiers are compared
SUFFIX, MODEL = DraftSource("suffix"), DraftSource("draft", "MODEL")
MAX_TPOT_WITH_DRAFTS = 0.99  # of the time per output token: with drafts it must be below
_CHANGE_TRIALS = 3
_ROUTER_TRIALS = 5


def changes_of(machine: Machine, question: Question) -> list[str]:
    """Return the names of the changes that the traffic of a question may undergo on a machine."""
    left_out = {OF_ANSWERS: machine.is_pooled, OF_ARRIVALS: asks_for_sessions(question)}
    return [name for name in CHANGES if not left_out.get(name)]


@dataclass(frozen=True, slots=True)
class Change:
    """trial: under the changed demand, with the planned replicas. replicas: needed then; None: more than `beyond`, the
    most that was tried."""

    name: str
    trial: Trial
    replicas: int | None
    beyond: int = 0


def find_change(runner: TrialRunner, best: Candidate, replicas: int, name: str, yardstick: Yardstick) -> Change:
    """Find what one of CHANGES would take, in short trials; with the planned replicas, in one as long as that of the
    planned load where short ones show less: conversations warm up slowly, and no low lane's queue grows."""
    changed = _as_spread(runner, best, replicas, CHANGES[name](runner.question.demand))
    share = changed.rate / replicas

    def run(rate: float) -> Trial:
        return replace(yardstick.read(beside(runner, best, rate, demand=changed)), rate=rate)

    def run_long() -> Trial:
        return beside(runner, best, share, demand=changed, reads=THOROUGHLY)

    trial = run(share) if conversations_of(runner.question) is None else run_long()
    more = changed.rate > runner.question.demand.rate  # alike, only more
    if (trial.met and trial.by_class) or (more and not trial.met and share <= best.rate):
        trial = run_long()  # one short trial does not overrule what the plan's long ones found
    if trial.met:
        return Change(name, trial, replicas)
    if more:
        return Change(name, trial, _more_than(replicas, changed.rate / best.rate))
    found = find_capacity(run, best.rate, ROUGH, _CHANGE_TRIALS, trickle=False, known=trial)
    if found.met is not None:
        return Change(name, trial, _more_than(replicas, changed.rate / found.limit))
    assert found.missed is not None, "the search began with a miss"
    return Change(name, trial, None, whole_engines(changed.rate / found.missed.rate))


def _as_spread(runner: TrialRunner, best: Candidate, replicas: int, changed: Demand) -> Demand:
    """Return a changed demand; the planned one, whose trials the cache has, where the router spreads what is changed:
    clumps of arrivals over many replicas."""
    planned, share = runner.question.demand, runner.topology(best.pooled).engines / replicas
    return planned if changed.spread(share) == planned.spread(share) else changed


def _more_than(replicas: int, wanted: float) -> int:
    """Round up, above the planned replicas, which were found to be too few."""
    return max(replicas + 1, whole_engines(wanted))


@dataclass(frozen=True, slots=True)
class StrategyNeed:
    """candidate.rate 0: the strategy meets the SLOs at no rate, as capacity.missed shows. reason: why it was not
    tried."""

    strategy: str
    candidate: Candidate | None
    reason: str = ""


def untried(runner: TrialRunner, strategy: str) -> str:
    """Return why a strategy is not tried; empty where it is."""
    if strategy == "adaptive" and step_limit(runner.question.slos) is None:
        return "it needs an SLO on ITL"
    if strategy == "slack":
        return "it needs targets of the requests' own, and without is as chunked"
    return ""


def strategy_need(runner: TrialRunner, best: Candidate, name: str) -> StrategyNeed:
    """Find the need of a strategy on the chosen machine."""
    given = runner.question.overrides
    budget = None if name in TOGETHER else given.max_num_batched_tokens
    overrides = replace(given, strategy=name, max_num_batched_tokens=budget)
    candidate = candidate_for(runner.question, runner.traffic, best.machine, overrides)
    slowest = runner.run(candidate, TRICKLE * candidate.guess) if name in TOGETHER else None
    if slowest is not None and not slowest.met:  # no rate meets SLOs that are missed when requests hardly meet
        return StrategyNeed(name, replace(candidate, capacity=Capacity(None, slowest, 1)))
    return StrategyNeed(name, measure(runner, candidate, is_rough=True))


@dataclass(frozen=True, slots=True)
class RouterNeed:
    """trial: at the highest rate found to meet the SLOs behind this router; None: none was. replicas: of the demand
    then. simulated: replicas behind it in the trial."""

    router: str
    trial: Trial | None
    replicas: int | None
    simulated: int

    @property
    def cached(self) -> float:
        """Return the share of the prompts' tokens that was found cached."""
        return 0.0 if self.trial is None else self.trial.cached


def compares_routers(runner: TrialRunner, best: Candidate) -> bool:
    """Whether routers are compared: not where there is one replica, or prompts share no beginnings, nor where drawn
    prompts are shared for the most part, which no gateway would spread; prompts of a trace are as they were."""
    highest = 1.0 if isinstance(runner.question.demand, Traced) else AFFINE
    return best.pooled > 1 and MIN_SHARED <= runner.traffic.shared <= highest


def router_need(runner: TrialRunner, best: Candidate, router: str) -> RouterNeed:
    """Find the need behind a router; the deployment may be sized behind another."""
    topology = Topology(best.pooled, router)

    def trial(rate: float) -> Trial:
        return runner.run(best, rate, reads=ROUGHLY, topology=topology)

    met = find_capacity(trial, best.rate, ROUGH, _ROUTER_TRIALS, trickle=False).met
    replicas = None if met is None else whole_engines(runner.question.demand.rate / met.rate)
    return RouterNeed(router, met, replicas, best.pooled)


@dataclass(frozen=True, slots=True)
class SpeculationOutlook:
    """trial: the planned load with drafts; plain: without, otherwise the same. drafts: how often they are accepted."""

    drafts: SimulatedDrafts
    plain: Trial
    trial: Trial

    @property
    def drafted(self) -> Drafted:
        assert self.trial.drafted is not None, "a trial with drafts counts them"
        return self.trial.drafted

    @property
    def tpot(self) -> tuple[float, float]:
        """Return the seconds at p50, without and with drafts."""
        return self.plain.percentiles["tpot"][0], self.trial.percentiles["tpot"][0]

    @property
    def is_worth_it(self) -> bool:
        """Whether the controller drafts, and answers are faster with drafts."""
        without, with_drafts = self.tpot
        return self.drafted.steps_share > 0 and with_drafts < MAX_TPOT_WITH_DRAFTS * without


def try_speculation(runner: TrialRunner, best: Candidate, replicas: int, drafts: SimulatedDrafts) -> SpeculationOutlook:
    """Run the planned load twice with the same requests; the engine's own controller decides on drafts."""
    share = runner.question.demand.rate / replicas
    source = MODEL if drafts.pass_seconds else SUFFIX
    config = replace(best.config, scheduling=best.config.scheduling.drafting_from(source))
    plain = runner.run(best, share, seed=PLANNED_SEED, topology=Topology())
    trial = runner.run(best, share, seed=PLANNED_SEED, config=config, topology=Topology(drafts=drafts))
    return SpeculationOutlook(drafts, plain, trial)
