"""Sizing: how many of which machines, under which settings, for a demand with SLOs; and how sure that is.

A closed form orders the ways to split the model; trials then find the rate that each of the best keeps, with several
replicas behind a router where the demand takes several, because a router evens out what clumps. At most POOLED are
simulated; beyond that their rate is multiplied, and the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inflight.config.setting import SettingsError
from inflight.core.types.features import Features
from inflight.counted import UNBOUNDED
from inflight.metrics.confidence import min_samples
from inflight.metrics.slo import Slo
from inflight.planning.demand import Demand, sample
from inflight.planning.engine_config import TOGETHER, EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.proposal import BUDGETS, KV_SHARE, Overrides, Proposal, propose
from inflight.planning.search import Capacity, find_capacity
from inflight.planning.simulation import ROUTER, Pools, Tiers, Trial, try_out
from inflight.planning.steady import DRAIN, FILL, Length, length, rows_at, steady_state
from inflight.planning.traffic import Traffic, analyze_traffic
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.steps import StepModel

POOLED = 3  # replicas that are simulated together
SIMULATED = 2  # ways to split the model that are simulated, of all that fit
TOKENS = 80_000  # output tokens that a trial reads, where requests are within these
PATIENCE = 5  # and so many times as long as an SLO on TTFT
CEILING = 1.0  # of what the closed form serves at most: nothing is tried beyond, however good a short run would look
TOLERANCE = 0.1  # between the rate that keeps the SLOs and one that does not
ROUGH, ROUGHLY = 0.25, 0.55  # the same, and times the usual requests, where only about how many more is asked
AT_ENDS = 6  # trials, where everything uncertain is at one end
THOROUGHLY = 2.0  # times the usual requests, where the answer rests on one trial
MOST_STEPS = 25_000  # of a trial's prompts: two or three seconds, of which a plan takes dozens
MAX_DECODE_STEPS = 40_000  # of a trial whose steps are computed one by one: about three seconds
MIN_READ = 30  # requests of such a trial, however long their answers are
CLUMPS = 1.1  # requests more than are needed, because which of them fall into the part that is read, chance decides
HEADROOM = 0.85  # of saturation, where nothing is promised
Progress = Callable[[str], None]


class Requests(NamedTuple):
    """Of one trial: fewest and usual that are read, most that are offered. decisive: that are read at least where the
    answer hangs on one trial."""

    fewest: int
    usual: int
    most: int
    decisive: int = 0


def requests_for(slos: Sequence[Slo]) -> Requests:
    """What decides must be sure of the percentile: its interval needs an upper end. A run that fills and drains long
    reads a third of its requests (`steady`)."""
    fewest = max((min_samples(slo.of_requests) for slo in slos), default=0)
    decisive = math.ceil(CLUMPS * fewest)
    return Requests(250, max(450, decisive), max(1000, 3 * decisive), decisive)


def whole_engines(wanted: float) -> int:
    """At least one; a thousandth more than whole ones is none more."""
    return max(1, math.ceil(wanted * 0.999))


@dataclass(frozen=True, slots=True)
class LayoutsAsked:
    """link(machine): between two of its engines; None: nothing is known of it. disagg_modes: ways to ask for prompts.
    tiers(machine): that its engines may have."""

    link: Callable[[Machine], Link | None]
    disagg_modes: tuple[DisaggMode, ...] = (AFTER,)
    tiers: Callable[[Machine], tuple[Tiers, ...]] = lambda machine: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """machines: ways to run one engine, of which one is chosen. slos may be empty: then the demand is only to be
    served. seed: of the workloads. requests: of one trial, as `Requests` has them; None: as many as the promised
    percentiles need. drafts: how often they would be right; None: speculation is not asked about. layouts: what is
    asked about them; None: nothing."""

    machines: Sequence[Machine]
    demand: Demand
    slos: tuple[Slo, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    seed: int = 0
    requests: tuple[int, int, int] | None = None
    drafts: SimulatedDrafts | None = None
    layouts: LayoutsAsked | None = None

    @property
    def sizes(self) -> Requests:
        return requests_for(self.slos) if self.requests is None else Requests(*self.requests)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One machine and its settings. guess: requests/s that a replica may be expected to keep. pooled: replicas that are
    simulated together. capacity: what was found. rate: requests/s that each replica may be given; 0 where no rate was
    found that keeps the SLOs."""

    machine: Machine
    proposal: Proposal
    config: EngineConfig
    guess: float
    pooled: int
    capacity: Capacity = field(default_factory=lambda: Capacity(None, None, 0))
    rate: float = 0.0

    def replicas(self, demand: Demand) -> int:
        """That serve the demand; raises ValueError where no rate keeps the SLOs."""
        if not self.rate:
            raise ValueError(f"{self.machine.name} keeps the promises at no rate")
        return whole_engines(demand.rate / self.rate)

    def gpus(self, demand: Demand) -> int:
        return self.replicas(demand) * self.machine.gpus


class TrialRunner:
    """Trials for one question, with the number of requests that it takes."""

    def __init__(self, question: Question, traffic: Traffic):
        self.question = question
        self.traffic = traffic

    def run(
        self,
        candidate: Candidate,
        rate: float,
        *,
        replicas: int | None = None,
        seed: int = 0,
        demand: Demand | None = None,
        model: StepModel | None = None,
        config: EngineConfig | None = None,
        reads: float = 1.0,
        drafts: SimulatedDrafts | None = None,
        router: str = ROUTER,
        pools: Pools | None = None,
        tiers: Tiers | None = None,
    ) -> Trial:
        """rate: requests/s of each replica. replicas None: as many as are simulated of this candidate. reads: times as
        many requests as usual. drafts: how often those are right that `config` asks for. pools: in place of replicas,
        which count as many; `config` is of those for prompts. tiers: that all have."""
        number = replicas or candidate.pooled
        if pools is not None:
            number = pools.prefill + pools.decode
        traffic = self.traffic if demand is None else traffic_of(demand)
        residents = rows_at(model or candidate.machine.model, traffic, rate, candidate.config.max_num_seqs)
        more = 1.0 if pools is None else max(1.0, number / candidate.pooled)
        run = self._length(candidate, rate, number, residents, reads, more)
        offered = (demand or self.question.demand).workload(rate * number, run.requests, self.question.seed + seed)
        chosen = config or candidate.config
        if pools is None and not any(entry.prefix for entry in offered.entries):
            chosen = replace(chosen, enable_prefix_caching=False)  # nothing is shared, and not to look is faster
        shares = (run.begin, run.end)
        return try_out(
            candidate.machine,
            chosen,
            offered,
            self.question.slos,
            model,
            number,
            measured=shares,
            drafts=drafts,
            router=router,
            pools=pools,
            tiers=tiers,
        )

    def _length(
        self, candidate: Candidate, rate: float, replicas: int, residents: float, reads: float, more: float = 1.0
    ) -> Length:
        """Enough for a percentile, and for a queue to grow to what it would be: in a shorter run every rate looks
        good. more: times as many requests at most, where there are more engines than usual."""
        sizes = self.question.sizes
        most = min(more * sizes.most, self.question.demand.most)  # of a short trace
        fewest = max(sizes.fewest, sizes.decisive if reads >= 1 else 0)
        affordable = self._affordable(candidate.machine, residents)
        fewest, most = min(fewest, affordable), min(most, 3 * affordable)
        if rate < 0.2 * candidate.guess:
            return Length(fewest)  # hardly anyone meets; the run is long enough by itself
        enough = max(fewest, reads * min(sizes.usual, max(fewest, TOKENS / max(1.0, self.traffic.output_mean))))
        lasting = replicas * PATIENCE * patience(self.question.slos) * rate
        return length(replicas * residents, min(max(enough, lasting), affordable), max(1.0, reads) * most)

    def _affordable(self, machine: Machine, residents: float) -> int:
        """Return how many requests a trial may read: where few run at once, each of them takes about as many steps as
        its answer has tokens. Steps that are alike are taken together at depth 1 without windows, and cost nothing."""
        if machine.depth == 1 and machine.windows == (0,):
            return UNBOUNDED
        return max(MIN_READ, math.floor(MAX_DECODE_STEPS * max(1.0, residents) / self.traffic.output_mean))


def patience(slos: Sequence[Slo]) -> float:
    """Seconds that a first token may take at most, by what is promised."""
    return max((slo.limit for slo in slos if slo.metric == "ttft"), default=0.0)


def quiet(_: str) -> None:
    """Tells nobody."""


def traffic_of(demand: Demand) -> Traffic:
    return analyze_traffic(sample(demand))


def candidates(question: Question, traffic: Traffic) -> list[Candidate]:
    """A proposal for each machine that can hold the longest request, the cheapest by the closed form first."""
    check_steps(question.overrides.max_num_batched_tokens, question.sizes.usual, traffic)
    fitting = [machine for machine in question.machines if machine.tokens >= traffic.longest]
    found = [candidate_for(question, traffic, machine, question.overrides) for machine in fitting]
    return sorted(found, key=lambda one: one.machine.gpus / one.guess)


def check_steps(budget: int | None, requests: int, traffic: Traffic) -> None:
    """budget: tokens of a step, as the user has fixed it. requests: of a trial. Raises SettingsError where trials would
    take hours."""
    tokens = requests * traffic.input_mean * (1 - traffic.shared)
    if budget is not None and tokens / budget > MOST_STEPS:
        raise SettingsError(
            f"--max-num-batched-tokens is {budget:,}: the prompts of one trial ({requests:,} of "
            f"{traffic.input_mean:,.0f} tokens) take {tokens / budget:,.0f} steps, too many to simulate; give at least "
            f"{math.ceil(tokens / MOST_STEPS):,}."
        )


def candidate_for(question: Question, traffic: Traffic, machine: Machine, overrides: Overrides) -> Candidate:
    proposal = propose(machine, traffic, question.slos, overrides)
    guess = proposal.steady.requests_per_s * _share_left(machine, proposal.config, traffic, question.slos)
    residents = rows_at(machine.model, traffic, guess, proposal.config.max_num_seqs)
    alone = (FILL + DRAIN) * residents + PATIENCE * patience(question.slos) * guess  # requests of one replica in a run
    together = question.sizes.most / max(1.0, alone)
    number = max(1, min(POOLED, math.ceil(question.demand.rate / guess), math.floor(together)))
    return Candidate(machine, proposal, proposal.config, guess, number)


def _share_left(machine: Machine, config: EngineConfig, traffic: Traffic, slos: tuple[Slo, ...]) -> float:
    """Of what the closed form serves. An SLO on TTFT leaves for waiting what a long prompt does not take alone."""
    shares = [0.9]
    for slo in slos:
        if slo.metric == "ttft":
            alone = prompt_seconds(machine, config, traffic.input.p99 or 1.0)
            shares.append(1 - alone / slo.limit)
        elif slo.paces:
            shares.append(0.7)
    return max(0.05, min(shares))


def prompt_seconds(machine: Machine, config: EngineConfig, tokens: float) -> float:
    """Of a prompt with nobody else there, chunk by chunk."""
    chunk = config.max_num_batched_tokens or round(tokens)
    seconds, start = 0.0, 0
    while start < round(tokens):
        length = min(chunk, round(tokens) - start)
        seconds += machine.model.seconds(Features(length, 1, 1, 0, length * (start + length / 2)))
        start += length
    return seconds


def measure(runner: TrialRunner, candidate: Candidate, worth: float = 0.0, *, rough: bool = False) -> Candidate:
    """Find the highest rate that keeps the SLOs, with as many replicas behind a router as the demand takes, up to
    POOLED. worth: a rate below which the candidate is of no interest. rough: in fewer and shorter trials."""
    slos = runner.question.slos
    capacity = find_capacity(
        lambda rate: runner.run(candidate, rate, reads=ROUGHLY if rough else 1.0),
        max(candidate.guess, worth),
        ROUGH if rough else TOLERANCE,
        5 if rough else 7,
        worth=worth,
        ceiling=CEILING * candidate.proposal.steady.requests_per_s,
    )
    if capacity.held is None:
        return replace(candidate, capacity=capacity, rate=0.0)
    return replace(candidate, capacity=capacity, rate=capacity.held.rate * (1.0 if slos else HEADROOM))


def widen(runner: TrialRunner, candidate: Candidate) -> Candidate:
    """A step twice as long (half as long, where the pace of tokens gave way first), if it holds the rate that broke the
    SLOs."""
    broken, held = candidate.capacity.broken, candidate.capacity.held
    budget = candidate.config.max_num_batched_tokens
    fixed = runner.question.overrides.max_num_batched_tokens is not None or candidate.config.strategy == "continuous"
    if broken is None or held is None or budget is None or fixed or not runner.question.slos:
        return candidate
    paced = bool(broken.broken) and broken.broken[0][0].paces
    other = budget // 2 if paced else budget * 2
    if candidate.config.max_num_seqs <= other and BUDGETS[0] <= other <= BUDGETS[-1]:
        reason = f"steps of {budget:,} tokens, the first guess, kept the promises up to {held.rate:.3g} requests/s only"
        config = replace(candidate.config, max_num_batched_tokens=other).because("max-num-batched-tokens", reason)
        trial = runner.run(candidate, broken.rate, config=config)
        if trial.met:
            capacity = replace(candidate.capacity, held=trial, broken=None)  # what broke was the other setting
            return replace(candidate, config=config, capacity=capacity, rate=trial.rate)
    return candidate


def settle(candidate: Candidate, traffic: Traffic, trial: Trial, overrides: Overrides) -> EngineConfig:
    """Rows as trials found them to be needed, rather than as the closed form guessed."""
    config = candidate.config
    if overrides.max_num_seqs is not None or config.strategy in TOGETHER:
        return config
    needed = max(8, 8 * math.ceil((3 * trial.rows + 8) / 8))
    if needed >= config.max_num_seqs:
        return config
    reason = (
        f"three times the {trial.rows:,.0f} that run on average at this load, so that clumps find a place; KV memory "
        f"would hold {int(KV_SHARE * candidate.machine.sequences(traffic.mean_context)):,} with a tenth to spare"
    )
    return replace(config, max_num_seqs=needed).because("max-num-seqs", reason)


def rate_under(runner: TrialRunner, candidate: Candidate, model: StepModel) -> float:
    """Requests/s that each replica keeps if steps take what another model says, in few trials from where the closed
    form expects it; 0 where even requests that hardly meet break the SLOs."""
    machine = replace(candidate.machine, model=model)
    expected = candidate.rate * _guess(machine, candidate, runner) / _guess(candidate.machine, candidate, runner)
    found = find_capacity(
        lambda rate: runner.run(candidate, rate, model=model, reads=ROUGHLY), expected, ROUGH, AT_ENDS
    )
    return 0.0 if found.held is None else found.held.rate * (1.0 if runner.question.slos else HEADROOM)


def _guess(machine: Machine, candidate: Candidate, runner: TrialRunner) -> float:
    budget = candidate.config.max_num_batched_tokens or 2048
    steady = steady_state(machine.model, runner.traffic, candidate.config.max_num_seqs, budget)
    return steady.requests_per_s * _share_left(machine, candidate.config, runner.traffic, runner.question.slos)
