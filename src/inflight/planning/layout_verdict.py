"""Which layout pays, and why, in sentences and as data.

Knows what was found of each layout (`layouts`); nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inflight.counted import counted
from inflight.planning.demand import Demand
from inflight.planning.layouts import APART, CHUNKED, LayoutNeed
from inflight.planning.simulation import Pools, Tiers, Trial
from inflight.planning.traffic import Traffic
from inflight.planning.wording import how_broken
from inflight.simulate.disagg import Link

WORTH = 0.03  # of GPUs or of rate: less is noise of trials as short as these
NOTICED = 0.2  # of a promise on TTFT that a transfer takes
UNEVEN = 0.25  # between the shares of time that the pools are busy
_WIDTH = 38


@dataclass(frozen=True, slots=True)
class LayoutOutlook:
    """needs: of each layout, the plan's own kind among them. link: between engines; None: not known. no_tiers: why none
    were tried although they were asked about; "": they were, or were not asked about. moves: whether blocks of this
    model can go elsewhere: its layers look back equally far, and keep no state."""

    needs: Sequence[LayoutNeed]
    demand: Demand
    traffic: Traffic
    link: Link | None
    no_tiers: str = ""
    moves: bool = True

    @property
    def untried(self) -> list[str]:
        """What was not, and why."""
        if not self.moves:
            return [
                "apart and tiers were not tried: layers of this model look back differently far, or keep a state, and "
                "its blocks go nowhere else"
            ]
        no_link = (
            "apart was not tried: nothing is known of the link between engines; give --transfer-gbps, or, where it is "
            "given, calibrate anew: the step model does not say how many bytes a block has"
        )
        return [one for one in (no_link if self.link is None else "", self.no_tiers) if one]


def describe(outlook: LayoutOutlook) -> list[str]:
    return [*(_line(one, outlook.demand) for one in outlook.needs), *outlook.untried, *verdicts(outlook)]


def verdicts(outlook: LayoutOutlook) -> list[str]:
    """A sentence or two on each choice."""
    found = [*_of_chunks(outlook), *_of_pools(outlook)]
    for one in outlook.needs:
        usual = _named(outlook.needs, one.layout.name)
        if one.layout.tiers is not None and usual is not None:
            found.append(_of_tier(one, usual, outlook.demand))
    return found


def layout_data(outlook: LayoutOutlook) -> dict[str, Any]:
    return {
        "link_gbps": None if outlook.link is None else outlook.link.gbps,
        "found": [_data(one, outlook.demand) for one in outlook.needs],
        "untried": outlook.untried,
        "verdicts": verdicts(outlook),
    }


# -- inside ---------------------------------------------------------------------------------------------------------


def _named(needs: Sequence[LayoutNeed], name: str) -> LayoutNeed | None:
    """Without tiers, the one that serves most of its kind."""
    found = [one for one in needs if one.layout.name == name and one.layout.tiers is None]
    return max(found, key=lambda one: one.rate, default=None)


def _line(need: LayoutNeed, demand: Demand) -> str:
    engines, gpus = need.engines(demand), need.gpus(demand)
    name = f"{name_of(need):<{_WIDTH}}"
    if engines is None or need.held is None:
        at = "" if need.broken is None else f": even at {need.broken.rate:.3g}/s per engine {how_broken(need.broken)}"
        return f"{name} keeps the promises at no rate{at}"
    what = (
        counted(engines[0], "replica")
        if len(engines) == 1
        else f"{engines[0]:,} for prompts, {engines[1]:,} for answers"
    )
    beyond = "" if need.broken is None else f"; beyond that {how_broken(need.broken)}"
    return (
        f"{name} {counted(gpus or 0, 'GPU')} ({what}), {need.rate:.3g} requests/s for each engine{_found_with(need)}"
        f"{beyond}"
    )


def name_of(need: LayoutNeed) -> str:
    layout = need.layout
    if layout.pools is not None:
        return f"{layout.name}, asked {layout.pools.disagg_mode.decode_asks}"
    return layout.name if layout.tiers is None else f"{layout.name}, {tier_name(layout.tiers)}"


def tier_name(tiers: Tiers) -> str:
    if tiers.folder is not None:
        return "with a folder"
    return f"with {tiers.host_gib:g} GiB of host"


def _found_with(need: LayoutNeed) -> str:
    pools, held = need.layout.pools, need.held
    if pools is None or held is None:
        return ""
    busy = " and ".join(f"{share:.0%}" for share in held.busy)
    return f" (found with {pools.prefill} to {pools.decode}, busy {busy} of the time)"


def _of_chunks(outlook: LayoutOutlook) -> list[str]:
    """Of engines that do both, which way pays."""
    both = [one for one in outlook.needs if one.layout.name != APART and one.layout.tiers is None]
    whole = next((one for one in both if one.layout.name != CHUNKED), None)
    chunked = _named(both, CHUNKED)
    if whole is None or chunked is None or not (whole.rate or chunked.rate):
        return []
    if whole.rate > (1 + WORTH) * chunked.rate:
        return [
            f"whole prompts pay: {_times(whole.rate, chunked.rate)} as chunks{_because(chunked.broken, 'in chunks ')}"
        ]
    if chunked.rate > (1 + WORTH) * whole.rate:
        return [f"chunks pay: {_times(chunked.rate, whole.rate)} as whole prompts{_because(whole.broken, '')}"]
    return ["whole prompts and chunks serve alike here, as far as such trials tell"]


def _times(rate: float, other: float) -> str:
    return f"{rate / other:.2g} times as many requests" if other else "what keeps no promise otherwise,"


def _because(broken: Trial | None, where: str) -> str:
    """What stands against the other."""
    if broken is None or broken.saturated or not broken.broken:
        return ""
    slo = broken.broken[0][0]
    if slo.paces:
        return f", since {where}all streams wait for each prompt that is computed beside them ({how_broken(broken)})"
    return f", since {where}first tokens wait for the steps of others' answers ({how_broken(broken)})"


def _of_pools(outlook: LayoutOutlook) -> list[str]:
    apart = _named(outlook.needs, APART)
    both = [one for one in outlook.needs if one.layout.name != APART and one.layout.tiers is None]
    best = max(both, key=lambda one: one.rate, default=None)
    if apart is None or best is None or apart.layout.pools is None:
        return []
    gpus, others = apart.gpus(outlook.demand), best.gpus(outlook.demand)
    if gpus is None:
        return [f"apart does not pay: it keeps the promises at no rate{_reason_against(apart, outlook)}"]
    if others is None:
        return [f"apart pays: engines that do both keep the promises at no rate{_because(best.broken, '')}"]
    ratio = apart.rate / best.rate
    told = f"{counted(gpus, 'GPU')} in place of {others:,}, and {ratio:.2g} times the requests per GPU"
    if gpus < (1 - WORTH) * others:
        return [f"apart pays: {told}{_because(best.broken, f'with {best.layout.name} ')}"]
    if ratio > 1 + WORTH:
        return [
            f"apart does not pay at this rate: {told}; whole engines of both kinds are more than this demand fills, "
            "and from a few times the rate on it would pay"
        ]
    if ratio < 1 - WORTH:
        return [f"apart does not pay: {told}{_reason_against(apart, outlook)}"]
    return [f"apart and together serve alike here: {told}"]


def _reason_against(apart: LayoutNeed, outlook: LayoutOutlook) -> str:
    pools = apart.layout.pools
    assert pools is not None
    parts = []
    transfer, limit = _transfer_seconds(pools, outlook.traffic, apart), _ttft_limit(apart)
    if limit is not None and transfer > NOTICED * limit:
        parts.append(
            f"keys and values of a prompt of {outlook.traffic.input.p99 or 0:,.0f} tokens (p99) take "
            f"{transfer * 1e3:,.0f} ms on a link of {pools.link.gbps:,.0f} Gbit/s"
        )
    busy = apart.held.busy if apart.held is not None else ()
    if len(busy) == 2 and abs(busy[0] - busy[1]) > UNEVEN:
        idle = "prompts" if busy[0] < busy[1] else "answers"
        parts.append(
            f"engines for {idle} stand idle {1 - min(busy):.0%} of the time, and no split of up to four engines fits "
            "better"
        )
    if not parts:
        parts.append(
            "engines that do both fill steps of decodes, which wait for memory, with arithmetic of prompts; apart each "
            "does without the other's"
        )
    return ": " + ", and ".join(parts)


def _transfer_seconds(pools: Pools, traffic: Traffic, need: LayoutNeed) -> float:
    size = need.layout.candidate.machine.block_size
    blocks = round((traffic.input.p99 or 1.0) / size)
    return pools.link.rate(size).seconds(blocks)


def _ttft_limit(need: LayoutNeed) -> float | None:
    trial = need.held or need.broken
    return None if trial is None else min((slo.limit for slo in trial.values if slo.metric == "ttft"), default=None)


def _of_tier(need: LayoutNeed, usual: LayoutNeed, demand: Demand) -> str:
    name = tier_name(need.layout.tiers or Tiers())
    cached, before = _cached(need.held), _cached(usual.held)
    found = f"{cached:.0%} of the prompts' tokens are found {name}, {before:.0%} without"
    gpus, others = need.gpus(demand), usual.gpus(demand)
    if gpus is None or others is None:
        return f"{name}: {found}" + ("; it alone keeps the promises" if gpus is not None else "")
    if need.rate > (1 + WORTH) * usual.rate:
        less = f"{counted(gpus, 'GPU')} in place of {others:,}" if gpus < others else "but no GPU fewer at this rate"
        return f"it pays {name}: {need.rate / usual.rate:.2g} times the requests of each engine, {less}; {found}"
    return f"it does not pay {name}: each engine serves about as much; {found}"


def _cached(trial: Trial | None) -> float:
    return 0.0 if trial is None else trial.cached


def _data(need: LayoutNeed, demand: Demand) -> dict[str, Any]:
    pools, engines, tiers = need.layout.pools, need.engines(demand), need.layout.tiers
    return {
        "layout": need.layout.name,
        "tiers": None
        if tiers is None
        else {"host_gib": tiers.host_gib, "folder_blocks": None if tiers.folder is None else tiers.folder.blocks},
        "split": None if pools is None else [pools.prefill, pools.decode],
        "decode_asks": None if pools is None else pools.disagg_mode.decode_asks,
        "rate_per_engine": need.rate or None,
        "engines": None if engines is None else list(engines),
        "gpus": need.gpus(demand),
        "busy": [] if need.held is None else list(need.held.busy),
        "cached_share": _cached(need.held),
        "gives_way_first": None if need.broken is None else how_broken(need.broken),
    }
