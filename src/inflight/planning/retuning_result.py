"""A retuning as typed data, whose JSON `inflight tune --record --json` prints.

Times are seconds, goodput is requests/s; null where a value is not known, or, as `json_text` has it, not finite.
"""

from __future__ import annotations

import math

from msgspec import Struct

from inflight.metrics.confidence import Estimate
from inflight.planning.retuning import Figure, Retuning
from inflight.planning.shadow import Replayed, Shadow


class ReplayedResult(Struct, kw_only=True):
    """Goodput of the replayed seconds in requests/s, each measured run by itself."""

    simulated: float
    measured: list[float]


class ShadowResult(Struct, kw_only=True, rename={"low": "ratio_from", "high": "ratio_to"}):
    """ratio: of measured goodput, proposed over present, with its 95 % interval."""

    seconds: float
    requests: int
    present: ReplayedResult
    proposed: ReplayedResult | None
    ratio: float | None
    low: float | None
    high: float | None


class RetuneResult(Struct, kw_only=True):
    """better: whether the proposed settings are; else why the present ones stay. settings: to run with."""

    better: bool
    reason: str
    requests: int
    seconds: float
    settings: dict[str, str | int | float | bool]
    changed: dict[str, tuple[object, object]]
    deciding: Figure
    figures: list[Figure]
    notes: list[str]
    shadow: ShadowResult | None


def retune_result(retuning: Retuning, shadow: Shadow | None) -> RetuneResult:
    return RetuneResult(
        better=retuning.is_better,
        reason=retuning.reason,
        requests=retuning.requests,
        seconds=retuning.traffic.seconds,
        settings={name: one.value for name, one in retuning.config.options().items()},
        changed=retuning.changed,
        deciding=retuning.deciding,
        figures=list(retuning.figures),
        notes=list(retuning.traffic.notes),
        shadow=None if shadow is None else _shadow(shadow),
    )


def _shadow(shadow: Shadow) -> ShadowResult:
    ratio = shadow.goodput_ratio or Estimate(math.nan, None, None, 0)
    return ShadowResult(
        seconds=shadow.seconds,
        requests=shadow.requests,
        present=_replayed(shadow.present),
        proposed=None if shadow.proposed is None else _replayed(shadow.proposed),
        ratio=ratio.mean,
        low=ratio.low,
        high=ratio.high,
    )


def _replayed(replayed: Replayed) -> ReplayedResult:
    return ReplayedResult(
        simulated=replayed.simulated.attained_per_s, measured=[run.attained_per_s for run in replayed.measured]
    )
