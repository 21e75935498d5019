"""A sizing question: machines, demand and SLOs, and what else is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inflight.metrics.slo import Slo
from inflight.planning.autoscaling import LoadProfile
from inflight.planning.demand import Demand, traffic_of
from inflight.planning.machine import Machine
from inflight.planning.mixture import Mixed
from inflight.planning.programs import program_share
from inflight.planning.proposal import Overrides
from inflight.planning.simulation import Tiers
from inflight.planning.traffic import Traffic
from inflight.planning.trial_requests import Requests, requests_for
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.drafting import SimulatedDrafts

THOROUGHLY = 2.0  # times the usual requests, where the answer rests on one trial


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

    def engines(self, machine: Machine) -> int | None:
        """Return the engines of the GPUs that there are; None where their number is asked for."""
        return None if self.gpus is None else self.gpus // machine.gpus

    @property
    def takes_long_trials(self) -> bool:
        """Whether long trials decide the answer (`long_trials`): not where requests wait for the answers of others, nor
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
