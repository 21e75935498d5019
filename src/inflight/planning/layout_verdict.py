"""Judge the layouts of a deployment: which pays, and why, in sentences and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct

from inflight.planning.demand import Demand
from inflight.planning.layouts import CHUNKED, DISAGGREGATED, LayoutNeed
from inflight.planning.rendering import sentence
from inflight.planning.simulation import Tiers
from inflight.planning.traffic import Traffic
from inflight.simulate.disagg import Link

WORTH = 0.03  # of GPUs or of rate: less is noise of such short trials
NOTICED = 0.2  # of an SLO on TTFT that a transfer takes
UNEVEN = 0.25  # between the shares of time that the pools are busy


@dataclass(frozen=True, slots=True)
class LayoutOutlook:
    """needs: of each layout. link: between engines; None: not known. no_tiers: why none were tried although the
    question has some. moves: whether blocks of this model can go to other engines and tiers."""

    needs: Sequence[LayoutNeed]
    demand: Demand
    traffic: Traffic
    link: Link | None
    no_tiers: str = ""
    moves: bool = True

    @property
    def untried(self) -> list[str]:
        """Return sentences on layouts that were not tried."""
        if not self.moves:
            return [sentence("blocks_stay")]
        no_link = sentence("no_link") if self.link is None else ""
        return [one for one in (no_link, self.no_tiers) if one]

    @property
    def verdicts(self) -> list[str]:
        return [*self._on_chunks(), *self._on_pools(), *self._on_tiers()]

    def _named(self, *names: str) -> list[LayoutNeed]:
        """Return the layouts of these names without tiers, the best first."""
        found = [one for one in self.needs if one.layout.name in names and one.layout.tiers is None]
        return sorted(found, key=lambda one: -one.rate)

    @property
    def _colocated(self) -> list[LayoutNeed]:
        return self._named(*{one.layout.name for one in self.needs} - {DISAGGREGATED})

    def _on_chunks(self) -> Iterator[str]:
        both = self._colocated
        if len(both) < 2 or not both[0].rate:
            return
        best, other = both[:2]
        is_clear = best.rate > (1 + WORTH) * other.rate
        ratio = best.rate / other.rate if other.rate else None
        chunks_pay = best.layout.name == CHUNKED
        yield sentence("on_chunks", is_clear=is_clear, chunks_pay=chunks_pay, ratio=ratio, missed=other.missed)

    def _on_pools(self) -> Iterator[str]:
        pools, both = self._named(DISAGGREGATED)[:1], self._colocated[:1]
        if not pools or not both:
            return
        (need,), (best,) = pools, both
        gpus, others = need.gpus(self.demand), best.gpus(self.demand)
        ratio = need.rate / best.rate if best.rate else 0.0
        if gpus is None:
            case = "never"
        elif others is None:
            case = "only"
        elif gpus < (1 - WORTH) * others:
            case = "pays"
        else:
            case = "small" if ratio > 1 + WORTH else "loses" if ratio < 1 - WORTH else "alike"
        reasons = self._against(need)
        yield sentence("on_pools", case=case, gpus=gpus, others=others, ratio=ratio, best=best, reasons=reasons)

    def _against(self, need: LayoutNeed) -> list[str]:
        pools, trial = need.layout.pools, need.met or need.missed
        assert pools is not None
        reasons, tokens = [], self.traffic.input.p99
        size = need.layout.candidate.machine.block_size
        transfer = pools.link.rate(size).seconds(round((tokens or 1.0) / size))
        ttfts = [slo.limit for slo in (trial.values if trial is not None else ()) if slo.metric == "ttft"]
        if ttfts and transfer > NOTICED * min(ttfts):
            reasons.append(sentence("slow_link", tokens=tokens or 0, seconds=transfer, gbps=pools.link.gbps))
        busy = need.met.busy if need.met is not None else ()
        if len(busy) == 2 and abs(busy[0] - busy[1]) > UNEVEN:
            reasons.append(sentence("uneven_pools", idle="prefill" if busy[0] < busy[1] else "decode", busy=min(busy)))
        return reasons or [sentence("mixed_steps")]

    def _on_tiers(self) -> Iterator[str]:
        for one in self.needs:
            usual = self._named(one.layout.name)
            if one.layout.tiers is not None and usual:
                gpus, others = one.gpus(self.demand), usual[0].gpus(self.demand)
                pays = one.rate > (1 + WORTH) * usual[0].rate
                yield sentence("on_tier", need=one, usual=usual[0], gpus=gpus, others=others, pays=pays)


class TiersResult(Struct, frozen=True):
    host_gib: float | None
    folder_blocks: int | None

    @classmethod
    def of(cls, tiers: Tiers) -> TiersResult:
        return cls(tiers.host_gib, None if tiers.folder is None else tiers.folder.blocks)


class FoundLayout(Struct, frozen=True, rename={"first_missed": "gives_way_first"}):
    layout: str
    tiers: TiersResult | None
    split: tuple[int, int] | None
    decode_asks: str | None
    rate_per_engine: float | None
    engines: tuple[int, ...] | None
    gpus: int | None
    busy: tuple[float, ...]
    cached_share: float
    first_missed: str | None


class LayoutsResult(Struct, frozen=True):
    """Layouts as in the JSON of a plan."""

    link_gbps: float | None
    found: list[FoundLayout]
    untried: list[str]
    verdicts: list[str]


def layouts_result(outlook: LayoutOutlook) -> LayoutsResult:
    return LayoutsResult(
        link_gbps=None if outlook.link is None else outlook.link.gbps,
        found=[_found(one, outlook.demand) for one in outlook.needs],
        untried=outlook.untried,
        verdicts=outlook.verdicts,
    )


def _found(need: LayoutNeed, demand: Demand) -> FoundLayout:
    pools, tiers = need.layout.pools, need.layout.tiers
    return FoundLayout(
        layout=need.layout.name,
        tiers=None if tiers is None else TiersResult.of(tiers),
        split=None if pools is None else (pools.prefill, pools.decode),
        decode_asks=None if pools is None else pools.disagg_mode.decode_asks,
        rate_per_engine=need.rate or None,
        engines=need.engines(demand),
        gpus=need.gpus(demand),
        busy=() if need.met is None else need.met.busy,
        cached_share=need.cached,
        first_missed=None if need.missed is None else need.missed.shortfall,
    )
