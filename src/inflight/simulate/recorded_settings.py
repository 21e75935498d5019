"""The settings of a recorded run, and a fresh scheduler as it was there.

Knows a record's header, and what of an engine a record does not hold; no steps and no requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from inflight.config.assembly import make_rules, make_scheduler
from inflight.config.engine import EngineSettings, EvictionChoice
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.core.estimation.output_length import QUANTILES
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.speculation.speculation import Speculation
from inflight.core.stopping import StopTextFactory
from inflight.core.types.plan import Capacity
from inflight.records.checked import Malformed, converted, decoded
from inflight.records.schema import Header, RecordError, values_of

Depth = Annotated[int, msgspec.Meta(ge=1, le=2)]
_TABLE = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    capacity: Capacity
    engine: EngineSettings
    scheduling: SchedulingSettings
    token_budget: int
    depth: int


class _Sizes(msgspec.Struct):
    """Of a record's settings those that decide plans, beside capacity and `SchedulingSettings`."""

    prefix_caching: bool
    watermark: float
    max_num_batched_tokens: int
    depth: Depth
    kv_cache_host: float | None = None
    kv_eviction: EvictionChoice = "lru"


def recorded_settings(header: Header) -> RecordedSettings:
    """From a record's header. Raises RecordError where it lacks what decides plans, SettingsError."""
    values, capacity = values_of(header), Capacity(**header["capacity"])
    if "kv_cache_dir" in values:
        raise RecordError(
            f"The record is of an engine with --kv-cache-dir {values['kv_cache_dir']}, and what lay in that folder is "
            "not in it; record a run without one."
        )
    if "role" in values:
        raise RecordError(
            f"The record is of an engine with --role {values['role']}, and what its peers had is not in it; record a "
            "run without one."
        )
    try:
        sizes = converted(values, _Sizes)
        scheduling = SchedulingSettings.of(**_scheduling(values))
    except Malformed as fault:
        raise RecordError(
            f"The record's header {fault.cause}, which decides plans; record the run again with this version."
        ) from None
    engine = EngineSettings(
        max_num_seqs=capacity.max_rows,
        max_model_len=capacity.max_model_len,
        block_size=capacity.block_size,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=sizes.prefix_caching,
        watermark=sizes.watermark,
        kv_cache_host=sizes.kv_cache_host,
        kv_eviction=sizes.kv_eviction,
    )
    return RecordedSettings(capacity, engine, scheduling, sizes.max_num_batched_tokens, sizes.depth)


def _scheduling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Raises Malformed."""
    given = {name: value for name, value in values.items() if name in SCHEDULING_NAMES}
    for name in ("lanes", "tenant_weights"):
        if isinstance(given.get(name), str):
            given[name] = decoded(_TABLE, given[name].encode())
    given.setdefault("early_end_tokens", 0)  # records of versions that filled every step do not have it
    given.setdefault("lane_floor", 0.0)  # nor this, of versions in which background lanes were owed nothing
    given.setdefault("speculation", "off")  # nor this, of versions that drafted nothing
    if given.get("predictor") == QUANTILES.name:
        del given["predictor"]  # the default, where it is asked at all
    return given


def recorded_scheduler(
    settings: RecordedSettings, stop_text: StopTextFactory | None = None, speculation: Speculation | None = None
) -> Scheduler:
    """A fresh one, as it was in the recorded run."""
    capacity = settings.capacity
    rules = make_rules(settings.scheduling, settings.token_budget, capacity.max_model_len, capacity.max_rows)
    return make_scheduler(
        capacity, rules, settings.engine, settings.scheduling, stop_text=stop_text, speculation=speculation
    )
