"""Search what each layout keeps of one shape of traffic: the same searches as `inflight plan --compare-layouts`
makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.comparison import log_line
from benchmarks.disaggregation.shapes import DEGREE, GPU, MODEL
from inflight.metrics.slo import parse_slos
from inflight.models.known import read_model
from inflight.planning.candidate import Candidate
from inflight.planning.demand import Drawn, traffic_of
from inflight.planning.layouts import Layout, LayoutNeed, best_need, colocated, disaggregated, layout_need
from inflight.planning.machine import Hardware, Machine
from inflight.planning.proposal import Overrides
from inflight.planning.question import Question
from inflight.planning.sizing import candidate_for
from inflight.planning.steady import mixed_step, prompt_seconds
from inflight.planning.traffic import Traffic
from inflight.planning.trial_runner import TrialRunner
from inflight.simulate.disagg import AFTER, DisaggMode, Link
from inflight.simulate.hardware import find_gpu
from inflight.workload.lengths import parse_lengths

PLENTY = 1000.0  # requests/s: whole engines are filled
SETUP_S = 0.001


def machine_of(context: float) -> Machine:
    return Hardware(model=read_model(MODEL), gpu=find_gpu(GPU)).machine(DEGREE, context)


@dataclass(frozen=True, slots=True)
class Shape:
    """requests: of one trial: fewest and usual that are read, most that are offered."""

    prompts: str
    answers: str
    slos: str
    requests: tuple[int, int, int] | None = None

    @property
    def demand(self) -> Drawn:
        lengths = parse_lengths(self.prompts), parse_lengths(self.answers)
        return Drawn(PLENTY, *lengths, longest=read_model(MODEL).default_model_len)


class Search:
    def __init__(self, shape: Shape):
        traffic = traffic_of(shape.demand)
        machine = machine_of(traffic.mean_context)
        slos = parse_slos([shape.slos])
        question = Question(machines=[machine], demand=shape.demand, slos=slos, requests=shape.requests)
        self._runner = TrialRunner(question, traffic)
        self._best: Candidate = candidate_for(question, traffic, machine, Overrides())
        self._bytes_per_token = machine.block_bytes / machine.block_size
        self._layers = len(read_model(MODEL).layers)

    def together(self, engines: int | None = None) -> list[LayoutNeed]:
        """Whole prompts, and chunks."""
        return [self._need(one) for one in colocated(self._runner, self._best, engines)]

    def disaggregated(self, gbps: float, disagg_mode: DisaggMode = AFTER, engines: int | None = None) -> LayoutNeed:
        """The best of the splits that look best."""
        link = Link(self._bytes_per_token, gbps, SETUP_S, self._layers)
        return self._best_of(disaggregated(self._runner, self._best, link, disagg_mode, engines))

    def again(self, need: LayoutNeed, gbps: float, disagg_mode: DisaggMode = AFTER) -> LayoutNeed:
        """The same split with a slower link, or asked in another way."""
        pools = need.layout.pools
        assert pools is not None
        link = Link(self._bytes_per_token, gbps, SETUP_S, self._layers)
        guess = need.rate or need.layout.guess
        ceiling = guess if gbps < pools.link.gbps else math.inf
        return self._need(
            replace(need.layout, pools=replace(pools, link=link, disagg_mode=disagg_mode), guess=guess), ceiling
        )

    def better_together(self) -> LayoutNeed:
        return self._best_of(colocated(self._runner, self._best))

    def _best_of(self, layouts: Sequence[Layout]) -> LayoutNeed:
        return best_need(self._runner, layouts)

    def _need(self, layout: Layout, ceiling: float = math.inf) -> LayoutNeed:
        need = layout_need(self._runner, layout, ceiling=ceiling)
        split = "" if layout.pools is None else f" {layout.pools.prefill} to {layout.pools.decode}"
        link = (
            ""
            if layout.pools is None
            else f" at {layout.pools.link.gbps:,.0f} Gbit/s, {layout.pools.disagg_mode.decode_asks}"
        )
        log_line(f"  {layout.name}{split}{link}: {need.rate:.3g} requests/s for each engine")
        return need


def alone(prompts: str, answers: str) -> tuple[float, float]:
    """Seconds to the first token of a prompt at the 90th percentile, and between tokens, of a request that is alone."""
    shape = Shape(prompts, answers, "ttft=1000(p90)")
    traffic: Traffic = traffic_of(shape.demand)
    machine = machine_of(traffic.mean_context)
    lengths = sorted(entry.prompt_tokens for entry in shape.demand.workload(1.0, 4000, 0).entries)
    config = candidate_for(
        Question(machines=[machine], demand=shape.demand), traffic, machine, Overrides(strategy="continuous")
    ).config
    first = prompt_seconds(machine.model, lengths[int(0.9 * len(lengths))], config.max_num_batched_tokens)
    return first, machine.model.seconds(mixed_step(traffic, 1, 0))
