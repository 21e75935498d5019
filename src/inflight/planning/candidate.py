"""A candidate of a sizing: a machine with its settings, and the rate that it was found to serve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from inflight.planning.demand import Demand
from inflight.planning.engine_config import EngineConfig
from inflight.planning.machine import Machine
from inflight.planning.proposal import Proposal, usual_budget
from inflight.planning.search import Capacity
from inflight.planning.steady import prompt_seconds
from inflight.simulate.simulation import in_engine_steps

CEILING = 1.25  # times what the closed form serves, up to which rates are tried: it may be as much too low


def whole_engines(wanted: float) -> int:
    """Round up, to one at least; a thousandth more than whole ones is none more."""
    return max(1, math.ceil(wanted * 0.999))


def idle_prompt_seconds(machine: Machine, config: EngineConfig, tokens: float) -> float:
    """Return the seconds of a prompt on an idle engine, in the steps and forward passes of these settings."""
    settings = config.engine_settings(machine.max_model_len, machine.device)
    model = in_engine_steps(machine.model, settings, config.scheduling)
    step = config.step_tokens(machine.max_model_len) if config.scheduling.divides_prompts else None
    return prompt_seconds(model, tokens, step)


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
    def ceiling(self) -> float:
        """Return the requests/s of each replica beyond which no rate is tried."""
        return CEILING * self.proposal.steady.requests_per_s

    @property
    def highest(self) -> float:
        """Return the highest requests/s of a replica that meet the SLOs, or the fewest at which the planned load missed
        them. Without an SLO those that it serves, of which HEADROOM is planned."""
        met = self.capacity.met
        return self.missed_at or (self.rate if met is None or met.values else max(self.rate, met.rate))

    @property
    def step_tokens(self) -> int:
        """Return the tokens of a step at most; of a strategy without a budget those of the closed form."""
        tokens = self.config.step_tokens(self.machine.max_model_len)
        return usual_budget(self.machine, self.config.max_num_seqs) if tokens is None else tokens

    def prompt_seconds(self, tokens: float) -> float:
        """Return the seconds of a prompt on an idle engine."""
        return idle_prompt_seconds(self.machine, self.config, tokens)

    def replicas(self, demand: Demand) -> int:
        """Return the replicas that serve the demand; raise ValueError where no rate meets the SLOs."""
        if not self.rate:
            raise ValueError(f"{self.machine.name} meets the SLOs at no rate.")
        return whole_engines(demand.rate / self.rate)

    def gpus(self, demand: Demand) -> int:
        return self.replicas(demand) * self.machine.gpus
