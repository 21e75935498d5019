"""Routers: which replica a request goes to. Knows what a router in front of real engines knows: the request, and what
it has sent to each replica that has not been answered yet.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inflight.config.setting import check_options, one_of
from inflight.core.options import COUNT, Option, OptionValues, above_zero
from inflight.core.types.request import Request


@dataclass(slots=True)
class Load:
    """Of one replica. requests: sent and not ended; prompt_tokens: of those that have no first token yet."""

    requests: int = 0
    prompt_tokens: int = 0


class Router(Protocol):
    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        """Index of the replica that gets the request."""


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        place, self._next = self._next % len(loads), self._next + 1
        return place


class LeastLoaded:
    """Fewest requests under way; of equal ones, fewest prompt tokens to compute (join the shortest queue)."""

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        return min(range(len(loads)), key=lambda place: (loads[place].requests, loads[place].prompt_tokens))


class PowerOfTwo:
    """The less loaded of two drawn at random (Mitzenmacher 2001): nearly as good as asking all, and asks two."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        drawn = self._random.sample(range(len(loads)), min(2, len(loads)))
        return min(drawn, key=lambda place: (loads[place].requests, loads[place].prompt_tokens))


class PrefixAffinity:
    """Where most of the prompt went before, unless that replica is much busier than the least loaded one.

    Keeps for each block of a prompt, in its context, the replica that it was last sent to, as routers do that cannot
    look into the engines' caches; forgets the blocks that were asked for longest ago.
    """

    MOST = 1 << 18  # blocks remembered
    RATIO = 1.5  # times as many requests by which the affine replica may be busier, if that is more than `slack`

    def __init__(self, block: int, slack: int) -> None:
        """block: tokens. slack: requests by which the affine replica may be busier."""
        self._block, self._slack = block, slack
        self._seen: OrderedDict[int, int] = OrderedDict()  # hash of a prefix of whole blocks → replica

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        chain = self._chain(request)
        least = LeastLoaded().choose(request, loads)
        place = next((self._seen[one] for one in reversed(chain) if one in self._seen), least)
        fewest = loads[least].requests
        if loads[place].requests > max(fewest + self._slack, self.RATIO * fewest):
            place = least
        for one in chain:
            self._seen[one] = place
            self._seen.move_to_end(one)
        while len(self._seen) > self.MOST:
            self._seen.popitem(last=False)
        return place

    def _chain(self, request: Request) -> list[int]:
        tokens, value, chain = request.prompt_token_ids, hash(request.cache_salt) if request.cache_salt else 0, []
        for start in range(0, len(tokens) - self._block + 1, self._block):
            value = hash((value, tokens[start : start + self._block]))
            chain.append(value)
        return chain


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterEntry:
    """A router by its name. make: of the seed of what it draws, and its options; raises BadOption."""

    name: str
    make: Callable[[int, OptionValues], Router]
    options: tuple[Option[Any], ...] = ()


BLOCK: Option[int] = Option(
    name="router_block",
    kind=int,
    help="Prompt tokens that prefix-affinity remembers as one block; 16 unless set.",
    default=16,
    read=lambda value: int(above_zero(value, COUNT)),
)
SLACK: Option[int] = Option(
    name="router_slack",
    kind=int,
    help="Requests by which prefix-affinity lets a replica be busier than the least loaded one; 4 unless set.",
    default=4,
    read=lambda value: int(above_zero(value, COUNT)),
)
ROUTERS = {
    entry.name: entry
    for entry in (
        RouterEntry(name="round-robin", make=lambda seed, options: RoundRobin()),
        RouterEntry(name="least-loaded", make=lambda seed, options: LeastLoaded()),
        RouterEntry(name="power-of-two", make=lambda seed, options: PowerOfTwo(seed)),
        RouterEntry(
            name="prefix-affinity",
            make=lambda seed, options: PrefixAffinity(options[BLOCK], options[SLACK]),
            options=(BLOCK, SLACK),
        ),
    )
}
OPTIONS: dict[str, Option[Any]] = {option.name: option for entry in ROUTERS.values() for option in entry.options}


def make_router(name: str, seed: int = 0, options: OptionValues | None = None) -> Router:
    """seed: of routers that draw. Raises SettingsError."""
    one_of("router", name, ROUTERS)
    given = options or OptionValues()
    check_options("router", name, given, {router: entry.options for router, entry in ROUTERS.items()})
    return ROUTERS[name].make(seed, given)
