"""Sizing: the rate that a machine meets the SLOs at, under which settings, and how uncertain that is.

A closed form orders the ways to split the model; trials then find the rate of each of the best, with several replicas
behind a router where the demand takes several, because a router evens out bursts. At most POOLED are simulated; beyond
that their rate is multiplied, and the answer says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from inflight.counted import UNBOUNDED
from inflight.metrics.slo import Slo
from inflight.planning.autoscaling import LoadProfile
from inflight.planning.demand import Demand, traffic_of
from inflight.planning.engine_config import TOGETHER, WHOLE_PROMPTS, EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.programs import max_seconds, program_share
from inflight.planning.proposal import Overrides, Proposal, budgets_of, propose, rows_in_memory
from inflight.planning.queues import MIN_STEPS
from inflight.planning.rendering import sentence
from inflight.planning.search import Capacity, find_capacity
from inflight.planning.simulated_blocks import in_simulated_blocks
from inflight.planning.simulation import ROUTER, Tiers, Topology, Trial, try_out
from inflight.planning.slos import max_ttft
from inflight.planning.steady import DRAIN, FILL, Length, length, prompt_seconds, rows_at
from inflight.planning.traffic import Traffic
from inflight.planning.trial_cache import TrialCache, demand_digest
from inflight.planning.trial_requests import Requests, check_steps, requests_for
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.drafting import SimulatedDrafts
from inflight.simulate.steps import StepModel

POOLED = 3  # replicas that are simulated together
TOKENS = 80_000  # output tokens that a trial measures, where requests are within its limits
PATIENCE = 5  # times an SLO on TTFT that a trial lasts, at least
TOLERANCE = 0.1  # between the rate that meets the SLOs and one that does not
ROUGH, ROUGHLY = 0.25, 0.55  # the same, and times the usual requests, where a rough number is enough
SIMULATED = 2  # ways to split the model that are simulated, of all that fit
PLANNED_SEED = 2  # of the planned load: another than the search has, whose requests are those that it fits
THOROUGHLY = 2.0  # times the usual requests, where the answer rests on one trial
MAX_DECODE_STEPS = 40_000  # of a trial whose steps are computed one by one: about three seconds
MIN_READ = 30  # requests of such a trial, however long their answers are
MIN_EXPECTED = 0.05  # of what the closed form serves: a long prompt alone takes all of an SLO on TTFT, or nearly
HARDER_BY = 1.05  # times the replicas, where a trial misses the SLOs with the planned ones
AFFINE = 0.5  # of the prompts' tokens that earlier ones had: no gateway would spread such conversations
HEADROOM = 0.85  # of saturation, where there is no SLO
ROOM = 0.8  # of the highest rate that is simulated, of a search
BEYOND = 1.25  # times what the closed form serves, up to which rates are tried: it may be as much too low


def whole_engines(wanted: float) -> int:
    """Round up, to one at least; a thousandth more than whole ones is none more."""
    return max(1, math.ceil(wanted * 0.999))


@dataclass(frozen=True, slots=True)
class LayoutQuestion:
    """Layouts to compare. link(machine): between two of its engines; None: not known. tiers(machine): of its
    engines."""

    link: Callable[[Machine], Link | None]
    disagg_modes: tuple[DisaggMode, ...] = (AFTER,)
    tiers: Callable[[Machine], tuple[Tiers, ...]] = lambda machine: ()


@dataclass(frozen=True, slots=True)
class FleetQuestion:
    """Replicas that come and go. profile: the load over time; None: it does not vary. start_seconds: until a new
    replica takes requests; None: as its weights take. spot_loss: chance that a spot machine is lost in an hour; None:
    not asked. spot_price: of one of its GPUs, in $ per hour; None: not known."""

    profile: LoadProfile | None = None
    start_seconds: float | None = None
    spot_loss: float | None = None
    spot_price: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A deployment to size.

    machines: ways to run one engine, of which one is chosen. discarded: sentences on others. slos may be empty: then
    the demand is only to be served. seed: of the workloads. requests: of a trial, as `Requests` has them; None: as many
    as the SLOs' percentiles need. drafts: to try speculation with; None: not tried. layouts: to compare; None: not
    compared. gpus: that there are, where the rate that they serve is asked for; None: the demand has its
    rate. fleet: replicas that come and go.
    """

    machines: Sequence[Machine]
    demand: Demand
    slos: tuple[Slo, ...] = ()
    overrides: Overrides = field(default_factory=Overrides)
    seed: int = 0
    requests: tuple[int, int, int] | None = None
    drafts: SimulatedDrafts | None = None
    layouts: LayoutQuestion | None = None
    discarded: Sequence[str] = ()
    gpus: int | None = None
    fleet: FleetQuestion = FleetQuestion()

    @property
    def mean_rate(self) -> float:
        """Return the requests/s over the whole time, where the demand's rate is that of the busiest."""
        profile, mean = self.fleet.profile, self.demand.mean_rate
        return mean if profile is None or mean < self.demand.rate else profile.mean

    @property
    def takes_long_trials(self) -> bool:
        """whether long trials decide the answer (`long_trials`): not where requests wait for the answers of others, nor
        where each trial has all requests of a short trace."""
        if isinstance(self.demand, Mixed) and self.demand.waits_for_answers:
            return False
        return bool(self.slos) and self.demand.max_requests > THOROUGHLY * self.sizes.most

    def traffic_of(self, demand: Demand) -> Traffic:
        """Return the figures of a demand on these machines: encoders cache no prefixes."""
        return traffic_of(demand, caches=not any(one.is_encoder_only for one in self.machines))

    @property
    def sizes(self) -> Requests:
        if self.requests is not None:
            return Requests(*self.requests)
        shares = {slo.traffic: self.demand.share_of(slo.traffic) for slo in self.slos}
        return requests_for(
            self.slos, shares, {slo: program_share(self.demand, slo) for slo in self.slos if slo.is_of_programs}
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine and its settings. guess: requests/s expected of a replica. pooled: replicas that are simulated
    together. capacity: found by trials. rate: requests/s that each replica may get; 0: no rate was found that meets the
    SLOs. missed_at: requests/s of a replica at which the planned load missed them, though the search met them; None:
    at none."""

    machine: Machine
    proposal: Proposal
    config: EngineConfig
    guess: float
    pooled: int
    capacity: Capacity = field(default_factory=lambda: Capacity(None, None, 0))
    rate: float = 0.0
    missed_at: float | None = None

    @property
    def highest(self) -> float:
        """Return the highest requests/s of a replica that meet the SLOs, or the fewest at which the planned load missed
        them. Without an SLO those that it serves, of which HEADROOM is planned."""
        met = self.capacity.met
        return self.missed_at or (self.rate if met is None or met.values else max(self.rate, met.rate))

    @property
    def step_tokens(self) -> int | None:
        """Return the tokens of a step at most; None: any number."""
        return self.config.step_tokens(self.machine.max_model_len)

    def replicas(self, demand: Demand) -> int:
        """Return the replicas that serve the demand; raise ValueError where no rate meets the SLOs."""
        if not self.rate:
            raise ValueError(f"{self.machine.name} meets the SLOs at no rate.")
        return whole_engines(demand.rate / self.rate)

    def gpus(self, demand: Demand) -> int:
        return self.replicas(demand) * self.machine.gpus


class TrialRunner:
    """Trials for one question, each with as many requests as it takes. cache: of trials that were run before."""

    def __init__(self, question: Question, traffic: Traffic, cache: TrialCache | None = None):
        self.question, self.traffic, self._cache = question, traffic, cache
        self._demands = [(question.demand, traffic, demand_digest(question.demand))]  # the question's, and some others

    def topology(self, replicas: int) -> Topology:
        """Return replicas behind the router that deployments are sized with: the least-loaded, which every gateway has;
        where conversations find most of their prompts cached, one that sends them where that is."""
        return Topology(replicas, "prefix-aware" if self.traffic.shared > AFFINE else ROUTER)

    def traffic_of(self, demand: Demand) -> Traffic:
        """Return the traffic of the question's demand, or of another."""
        return self._figures(demand)[0]

    def stores(self, config: EngineConfig) -> bool:
        """Whether trials with these settings are kept: the cache does not know the code of plugins."""
        return self._cache is not None and not config.has_plugins

    def asking(self, question: Question, traffic: Traffic | None = None) -> TrialRunner:
        """Return a runner for another question. traffic: None: that of this one."""
        return TrialRunner(question, traffic or self.traffic, self._cache)

    def run(
        self,
        candidate: Candidate,
        rate: float,
        *,
        seed: int = 0,
        demand: Demand | None = None,
        model: StepModel | None = None,
        config: EngineConfig | None = None,
        reads: float = 1.0,
        topology: Topology | None = None,
        decides: bool = False,
    ) -> Trial:
        """Run a trial at `rate` requests/s of each engine, or the highest that is simulated, of `reads` times as many
        requests as usual.

        seed: added to the question's. demand, model, config, topology: in place of the question's demand, the machine's
        step model, the candidate's settings and its replicas behind a router. decides: whether it takes as many steps
        as the SLOs' percentiles need.
        """
        topology, demand = topology or self.topology(candidate.pooled), demand or self.question.demand
        traffic, digest = self._figures(demand)
        expected = partial(rows_at, model or candidate.machine.model, traffic, max_rows=candidate.config.max_num_seqs)
        rate = min(rate, demand.max_rate(expected(rate) / rate) / topology.engines)
        residents = expected(rate)
        run, seed = self._length(candidate, rate, topology, residents, reads, decides), self.question.seed + seed
        config, e2e, engines = config or candidate.config, residents / rate, topology.engines
        asked, measured, slos = (rate * engines, run.requests, seed), (run.begin, run.end), self.question.slos
        simulated = in_simulated_blocks(candidate.machine, self.traffic, config, topology.tiers is not None)

        share = engines / self._fleet(candidate, rate, demand)

        def trial() -> Trial:
            begun = demand.spread(share).started(e2e)
            offered = begun.workload(*asked)
            # Where no prompt shares a prefix, no lookup is faster. Recorded prompts may begin alike.
            shares = topology.pools is not None or any(one.prefix or one.prompt for one in offered.entries)
            own = config if shares else replace(config, enable_prefix_caching=False)
            made = try_out(simulated, own, offered, slos, model, topology, measured=measured)
            found = made.summary.e2e.mean or e2e
            reached = begun.reached(rate * engines, found, made.rate * engines) / engines
            # Open conversations that wait for answers send less than they would: missed is what they would send.
            return replace(made, rate=reached if made.met else max(rate, reached))

        if self._cache is None or not self.stores(config):
            return trial()
        machine = replace(simulated, cases=(), price_per_hour=None)
        inputs = (machine, config.without_reasons(), digest, asked, e2e, model, topology, measured, share, slos)
        return self._cache.get_or_run(inputs, trial)

    def _fleet(self, candidate: Candidate, rate: float, demand: Demand) -> float:
        """Return the engines that the whole demand has at so many requests/s of each."""
        gpus = self.question.gpus
        return demand.rate / rate if gpus is None else max(1, gpus // candidate.machine.gpus)

    def search_limit(self, candidate: Candidate) -> float:
        """Return the requests/s of each engine beyond which no search goes (`ceiling`). Where it would open more
        conversations than are simulated, a little more than the demand.

        Raises:
            WorkloadError: as many as the demand has are not simulated.
        """
        highest, demand = ceiling(candidate), self.question.demand
        residents = rows_at(candidate.machine.model, self.traffic, highest, candidate.config.max_num_seqs)
        simulated = ROOM * demand.max_rate(residents / highest) / candidate.pooled
        if not isinstance(demand, Mixed) or simulated >= highest:
            return highest
        wanted = math.inf if self.question.gpus is not None else demand.rate
        if simulated < min(wanted, candidate.guess):
            raise demand.too_many_open()
        return min(simulated, wanted / ROOM)

    def _figures(self, demand: Demand) -> tuple[Traffic, bytes]:
        """Return a demand's traffic, which takes as long as a short trial, and its digest."""
        if (found := next((one for one in self._demands if one[0] == demand), None)) is None:
            found = demand, self.question.traffic_of(demand), demand_digest(demand)
            self._demands = [self._demands[0], *self._demands[1:][-3:], found]
        return found[1:]

    def _length(
        self, candidate: Candidate, rate: float, topology: Topology, residents: float, reads: float, decides: bool
    ) -> Length:
        """Return a length that is enough for the percentiles, and for a queue to grow: in a shorter run every rate
        looks good."""
        sizes, engines = self.question.sizes, topology.engines
        more = 1.0 if topology.pools is None else max(1.0, engines / candidate.pooled)
        most = more * sizes.most
        fewest = max(sizes.fewest, sizes.decisive if reads >= 1 else 0, sizes.programs if decides else 0)
        most = max(most, 3 * sizes.programs if decides else 0)
        affordable = UNBOUNDED
        if not decides and (candidate.machine.depth > 1 or candidate.machine.windows != (0,)):
            # Where few run at once, each takes about as many steps as its answer has tokens; with one step in flight
            # and no windows, equal steps are simulated together.
            steps = MAX_DECODE_STEPS * max(1.0, residents) / self.traffic.output_mean
            affordable = max(MIN_READ, math.floor(steps))
        fewest, most = min(fewest, affordable), min(most, 3 * affordable)
        demand, budget = self.question.demand, candidate.step_tokens
        cold = prompt_seconds(candidate.machine.model, self.traffic.input_mean, budget)
        warm_up = engines * demand.warm_up_requests(rate, residents, cold)
        if rate < 0.2 * candidate.guess and not warm_up:
            return Length(math.ceil(min(fewest, demand.max_requests)))  # hardly two meet: it is long enough by itself
        enough = max(fewest, reads * min(sizes.usual, max(fewest, TOKENS / max(1.0, self.traffic.output_mean))))
        lasting = engines * PATIENCE * max_ttft(self.question.slos) * rate
        measured = min(max(enough, lasting), affordable)
        # Programs that began late end after as long as they may take.
        running = engines * max_seconds(self.question.slos) * rate
        most = max(1.0, reads) * most + running
        open_at_once = engines * residents * demand.slowest
        # Where many come in a step, so many requests are over in a few steps: by Little's law residents / o of them.
        of_steps = engines * MIN_STEPS * residents / self.traffic.output_mean
        least = of_steps if self.question.requests is None else 0.0
        measured = max(measured + running, least - (FILL + DRAIN) * open_at_once)
        return length(open_at_once, measured, min(max(most, least), demand.max_requests), warm_up)  # of a short trace


def candidates(question: Question, traffic: Traffic) -> list[Candidate]:
    """Propose settings for each machine that can hold the longest request, the cheapest by the closed form first: that
    of the fewest GPUs in whole engines, and among equals the one of which they serve the most."""
    check_steps(question.overrides.max_num_batched_tokens, question.sizes.usual, traffic)
    available = math.inf if question.gpus is None else question.gpus
    fitting = [one for one in question.machines if one.tokens >= traffic.longest and one.gpus <= available]
    found = [candidate_for(question, traffic, machine, question.overrides) for machine in fitting]
    rate = math.inf if question.gpus is not None else question.demand.rate
    return sorted(found, key=lambda one: _expected_gpus(one, rate))


def _expected_gpus(candidate: Candidate, rate: float) -> tuple[float, float]:
    gpus = candidate.machine.gpus
    return 0.0 if math.isinf(rate) else gpus * whole_engines(rate / candidate.guess), gpus / candidate.guess


def candidate_for(question: Question, traffic: Traffic, machine: Machine, overrides: Overrides) -> Candidate:
    proposal = propose(machine, traffic, question.slos, overrides)
    guess = proposal.steady.requests_per_s * expected_share(machine, proposal.config, traffic, question.slos)
    residents = rows_at(machine.model, traffic, guess, proposal.config.max_num_seqs)
    alone = (FILL + DRAIN) * residents + PATIENCE * max_ttft(question.slos) * guess  # requests of one replica in a run
    together = question.sizes.most / max(1.0, alone)
    number = max(1, min(POOLED, math.ceil(question.demand.rate / guess), math.floor(together)))
    return Candidate(machine, proposal, proposal.config, guess, number)


def expected_share(machine: Machine, config: EngineConfig, traffic: Traffic, slos: tuple[Slo, ...]) -> float:
    """Return the expected share of what the closed form serves: of an SLO on TTFT, a long prompt alone takes a part."""
    shares = [0.9]
    for slo in slos:
        if slo.metric == "ttft":
            tokens = traffic.long_prompt(slo.traffic, slo.share)
            alone = prompt_seconds(machine.model, tokens, config.step_tokens(machine.max_model_len))
            shares.append(1 - alone / slo.limit)
        elif slo.paces:
            shares.append(0.7)
    return max(MIN_EXPECTED, min(shares))


def ceiling(candidate: Candidate) -> float:
    """Return the requests/s of each replica beyond which no rate is tried."""
    return BEYOND * candidate.proposal.steady.requests_per_s


def measure(
    runner: TrialRunner,
    candidate: Candidate,
    worth: float = 0.0,
    *,
    most: float = math.inf,
    is_rough: bool = False,
) -> Candidate:
    """Find the highest rate that meets the SLOs, with as many replicas behind a router as the demand takes, up to
    POOLED. worth: a rate below which the candidate is of no interest. most: a rate that is enough. is_rough: in fewer
    and shorter trials."""
    capacity = find_capacity(
        lambda rate: runner.run(candidate, rate, reads=ROUGHLY if is_rough else 1.0),
        max(candidate.guess, worth),
        ROUGH if is_rough or runner.question.takes_long_trials else TOLERANCE,
        5 if is_rough else 7,
        worth=worth,
        ceiling=min(most, runner.search_limit(candidate)),
        trickle_first=candidate.guess <= MIN_EXPECTED * candidate.proposal.steady.requests_per_s,
    )
    capacity = in_order(capacity)
    return replace(candidate, capacity=capacity, rate=kept_rate(runner, capacity))


def in_order(capacity: Capacity) -> Capacity:
    """Return the capacity with no miss below the rate that meets the SLOs, as with fewer open conversations."""
    met, missed = capacity.met, capacity.missed
    if met is None or missed is None or missed.rate >= met.rate:
        return capacity
    return replace(capacity, missed=replace(missed, rate=met.rate))


def kept_rate(runner: TrialRunner, capacity: Capacity) -> float:
    """Return the requests/s of each replica that a search found; 0 where none meets the SLOs."""
    return 0.0 if capacity.met is None else capacity.met.rate * (1.0 if runner.question.slos else HEADROOM)


def widen(runner: TrialRunner, candidate: Candidate) -> Candidate:
    """Take a step twice as long (half as long, where an SLO between tokens was missed first), if it meets the SLOs at
    the rate that missed them."""
    missed, met = candidate.capacity.missed, candidate.capacity.met
    budget = candidate.config.max_num_batched_tokens
    fixed = runner.question.overrides.max_num_batched_tokens is not None or candidate.config.strategy in WHOLE_PROMPTS
    if missed is None or met is None or budget is None or fixed or not runner.question.slos:
        return candidate
    other = budget // 2 if missed.missed and missed.missed[0][0].paces else budget * 2
    budgets = budgets_of(candidate.machine)
    if candidate.config.max_num_seqs <= other and budgets[0] <= other <= budgets[-1]:
        more = missed.rate / met.rate - 1
        reason = f"serves {more:.0%} more within the SLOs than steps of {budget:,} tokens, the first guess"
        config = replace(candidate.config, max_num_batched_tokens=other).because("max-num-batched-tokens", reason)
        trial = runner.run(candidate, missed.rate, config=config)
        if trial.met:
            capacity = replace(candidate.capacity, met=trial, missed=None)  # the miss was of the other setting
            return replace(candidate, config=config, capacity=capacity, rate=trial.rate)
    return candidate


def with_fewer_rows(candidate: Candidate, traffic: Traffic, trial: Trial, overrides: Overrides) -> EngineConfig:
    """Return the settings with as many request slots as the trial needed, where the closed form guessed more."""
    config = candidate.config
    if overrides.max_num_seqs is not None or config.strategy in TOGETHER:
        return config
    needed = max(8, 8 * math.ceil((3 * trial.spent.rows + 8) / 8))
    if needed >= config.max_num_seqs:
        return config
    reason = sentence("why_fewer_rows", running=trial.spent.rows, kv_rows=rows_in_memory(candidate.machine, traffic))
    return replace(config, max_num_seqs=needed).because("max-num-seqs", reason)
