"""Trials of a sizing question at so many requests/s, each as long as its SLOs take, and kept for the next question."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from inflight.counted import UNBOUNDED
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.mixture import Mixed
from inflight.planning.programs import max_seconds
from inflight.planning.question import Question
from inflight.planning.queues import MIN_STEPS
from inflight.planning.simulated_blocks import in_simulated_blocks
from inflight.planning.simulation import ROUTER, Topology, Trial, try_out
from inflight.planning.slos import max_ttft
from inflight.planning.steady import DRAIN, FILL, Length, length, rows_at
from inflight.planning.traffic import Traffic
from inflight.planning.trial_cache import TrialCache, demand_digest
from inflight.simulate.steps import StepModel

TOKENS = 80_000  # output tokens that a trial measures, where requests are within its limits
PATIENCE = 5  # times an SLO on TTFT that a trial lasts, at least
ROUGHLY = 0.55  # times the usual requests, where a rough number is enough
PLANNED_SEED = 2  # of the planned load: another than the search has, whose requests are those that it fits
MAX_DECODE_STEPS = 40_000  # of a trial whose steps are computed one by one: about three seconds
MIN_READ = 30  # requests of such a trial, however long their answers are
AFFINE = 0.5  # of the prompts' tokens that earlier ones had: no gateway would spread such conversations
SERVED = 0.95  # of what the closed form serves, beyond which all request slots are taken
ROOM = 0.8  # of the highest rate that is simulated, of a search


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
        engines = self.question.engines(candidate.machine)
        return demand.rate / rate if engines is None else max(1, engines)

    def search_limit(self, candidate: Candidate) -> float:
        """Return the requests/s of each engine beyond which no search goes: the ceiling of the candidate, or, where it
        would open more conversations than are simulated, a little more than the demand.

        Raises:
            WorkloadError: as many as the demand has are not simulated.
        """
        highest, demand = candidate.ceiling, self.question.demand
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
        demand, cold = self.question.demand, candidate.prompt_seconds(self.traffic.input_mean)
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
        # A queue that gets far more than is served shows it in fewer.
        served = min(rate, SERVED * candidate.proposal.steady.requests_per_s)
        in_step = rows_at(candidate.machine.model, self.traffic, served, candidate.config.max_num_seqs)
        of_steps = engines * MIN_STEPS * min(residents, in_step) / self.traffic.output_mean
        least = of_steps if self.question.requests is None else 0.0
        measured = max(measured + running, least - (FILL + DRAIN) * open_at_once)
        return length(open_at_once, measured, min(max(most, least), demand.max_requests), warm_up)  # of a short trace
