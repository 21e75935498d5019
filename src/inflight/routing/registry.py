"""All routing policies by name, with the options that they declare. A new one is its file, and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inflight.config.setting import check_options, one_of
from inflight.core.options import Option, OptionValues, above_zero
from inflight.counted import UNBOUNDED
from inflight.routing.policies.least_loaded import LeastLoaded
from inflight.routing.policies.least_work import LeastWork
from inflight.routing.policies.policy import RoutingPolicy
from inflight.routing.policies.power_of_two import PowerOfTwo
from inflight.routing.policies.prefix_affinity import PrefixAffinity
from inflight.routing.policies.prefix_aware import PrefixAware
from inflight.routing.policies.round_robin import RoundRobin
from inflight.routing.policies.session_affinity import SessionAffinity
from inflight.routing.router import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterEntry:
    """A policy by its name. make: called with the seed of its draws and its options; raises BadOption."""

    name: str
    make: Callable[[int, OptionValues], RoutingPolicy]
    options: tuple[Option[Any], ...] = ()


BLOCK: Option[int] = Option(
    name="router_block",
    kind=int,
    help="Prompt tokens that prefix-aware and prefix-affinity remember as one block; 16 unless set.",
    default=16,
    read=lambda value: int(above_zero(value, UNBOUNDED)),
)
SLACK: Option[int] = Option(
    name="router_slack",
    kind=int,
    help="Requests by which prefix-affinity lets a replica be busier than the least loaded one; 4 unless set.",
    default=4,
    read=lambda value: int(above_zero(value, UNBOUNDED)),
)
ROUTERS = {
    entry.name: entry
    for entry in (
        RouterEntry(name="round-robin", make=lambda seed, options: RoundRobin()),
        RouterEntry(name="least-loaded", make=lambda seed, options: LeastLoaded()),
        RouterEntry(name="least-work", make=lambda seed, options: LeastWork()),
        RouterEntry(name="power-of-two", make=lambda seed, options: PowerOfTwo(seed)),
        RouterEntry(
            name="prefix-affinity",
            make=lambda seed, options: PrefixAffinity(options[SLACK]),
            options=(BLOCK, SLACK),
        ),
        RouterEntry(name="prefix-aware", make=lambda seed, options: PrefixAware(), options=(BLOCK,)),
        RouterEntry(name="session-affinity", make=lambda seed, options: SessionAffinity()),
    )
}
OPTIONS: dict[str, Option[Any]] = {option.name: option for entry in ROUTERS.values() for option in entry.options}


def make_router(name: str, seed: int = 0, options: OptionValues | None = None) -> Router:
    """Make the router of this name. seed: of policies that draw. Raises SettingsError."""
    one_of("router", name, ROUTERS)
    given = options or OptionValues()
    check_options("router", name, given, {router: entry.options for router, entry in ROUTERS.items()})
    return Router(ROUTERS[name].make(seed, given), given[BLOCK])
