"""Routers: which replica a request goes to. Knows what a router in front of real engines knows: the request, and what
it has sent to each replica that has not been answered yet.
"""

from __future__ import annotations

import difflib
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inflight.core.types.request import Request


class RouterError(ValueError):
    """There is no such router."""


@dataclass(slots=True)
class Load:
    """Of one replica. requests: sent and not ended; prompt_tokens: of those that have no first token yet."""

    requests: int = 0
    prompt_tokens: int = 0


class Router(Protocol):
    name: str

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        """Index of the replica that gets the request."""


class RoundRobin:
    name = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        place, self._next = self._next % len(loads), self._next + 1
        return place


class LeastLoaded:
    """Fewest requests under way; of equal ones, fewest prompt tokens to compute (join the shortest queue)."""

    name = "least-loaded"

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        return min(range(len(loads)), key=lambda place: (loads[place].requests, loads[place].prompt_tokens))


class PowerOfTwo:
    """The less loaded of two drawn at random (Mitzenmacher 2001): nearly as good as asking all, and asks two."""

    name = "power-of-two"

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

    name = "prefix-affinity"

    BLOCK = 16  # tokens
    MOST = 1 << 18  # blocks remembered
    SLACK, RATIO = 4, 1.5  # requests, and times as many, by which the affine replica may be busier

    def __init__(self) -> None:
        self._seen: OrderedDict[int, int] = OrderedDict()  # hash of a prefix of whole blocks → replica

    def choose(self, request: Request, loads: Sequence[Load]) -> int:
        chain = self._chain(request)
        least = LeastLoaded().choose(request, loads)
        place = next((self._seen[one] for one in reversed(chain) if one in self._seen), least)
        fewest = loads[least].requests
        if loads[place].requests > max(fewest + self.SLACK, self.RATIO * fewest):
            place = least
        for one in chain:
            self._seen[one] = place
            self._seen.move_to_end(one)
        while len(self._seen) > self.MOST:
            self._seen.popitem(last=False)
        return place

    def _chain(self, request: Request) -> list[int]:
        tokens, value, chain = request.prompt_token_ids, hash(request.cache_salt) if request.cache_salt else 0, []
        for start in range(0, len(tokens) - self.BLOCK + 1, self.BLOCK):
            value = hash((value, tokens[start : start + self.BLOCK]))
            chain.append(value)
        return chain


ROUTERS = ("round-robin", "least-loaded", "power-of-two", "prefix-affinity")


def make_router(name: str, seed: int = 0) -> Router:
    """seed: of routers that draw. Raises RouterError."""
    if name == "power-of-two":
        return PowerOfTwo(seed)
    simple: dict[str, type[Router]] = {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-affinity": PrefixAffinity,
    }
    if name not in simple:
        near = difflib.get_close_matches(name, ROUTERS, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise RouterError(f"--router is {name!r}; known are {', '.join(ROUTERS)}.{hint}")
    return simple[name]()
