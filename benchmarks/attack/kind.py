"""Define what an attack is: a name, a sentence, one visit of an attacker, and how many attack at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from benchmarks.attack.visit import WRONG_KEY, Visit

Act = Callable[[Visit], Awaitable[object]]
Whose = Literal["own", "none", "wrong"]


@dataclass(frozen=True, slots=True)
class Attack:
    """connections: at once. needs_key: it is for servers that ask for keys; the others are for servers without.
    prepare: what takes long and is done once, before the attack's time begins."""

    name: str
    what: str
    act: Act
    connections: int = 6
    needs_key: bool = True
    prepare: Callable[[], object] = lambda: None


def body(
    name: str, what: str, path: str, make: Callable[[], bytes], key: Whose = "own", connections: int = 6
) -> Attack:
    """The same body again and again. make: called once, in the attacker's process."""
    made = cache(make)
    keys: dict[Whose, str | None] = {"own": None, "none": "", "wrong": WRONG_KEY}

    async def act(visit: Visit) -> None:
        await visit.post(path, made(), keys[key])

    return Attack(name, what, act, connections, prepare=made)
