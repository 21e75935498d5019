"""A process of attackers: `python -m benchmarks.attack.attacker`, a plan as JSON on standard input.

It writes a line when its bodies are made and its time begins, and its tallies as JSON when that is over. It ends when
the process that started it is gone, and in any case soon after its time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import uvloop

from benchmarks.attack.catalogue import everything
from benchmarks.attack.kind import Attack
from benchmarks.attack.parent import end_with_parent
from benchmarks.attack.visit import Tally, Visit

_NICE = 5  # attackers are to take the server's time, not the machine's
READY = b"ready\n"
_GRACE = 20  # seconds after its time at which the process ends whatever it does
_PREPARING = 120  # seconds that may pass before its time begins
_BREATH = 0.01  # seconds between visits of one attacker


@dataclass(frozen=True, slots=True)
class Plan:
    """names: one attack alone, or several, of which each attacker in turn takes a random one for `turn` seconds.
    at_once: how many of a mixture go on at once."""

    port: int
    keys: list[str]
    names: list[str]
    seconds: float
    seed: int
    turn: float = 4.0
    at_once: int = 3


async def attacked(plan: Plan) -> dict[str, Tally]:
    """By attack."""
    known = everything()
    attacks = [known[name] for name in plan.names]
    for attack in attacks:
        attack.prepare()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    signal.alarm(int(plan.seconds) + _GRACE)
    end = time.monotonic() + plan.seconds
    tallies = {attack.name: Tally() for attack in attacks}
    if len(attacks) == 1:
        await _together(plan, attacks[0], tallies[attacks[0].name], random.Random(plan.seed), end)
    else:
        await asyncio.gather(*(_in_turn(plan, attacks, tallies, part, end) for part in range(plan.at_once)))
    return tallies


async def _in_turn(plan: Plan, attacks: Sequence[Attack], tallies: dict[str, Tally], part: int, end: float) -> None:
    """Each attack once in a random order, then again in another, so that none is left out for long."""
    rng = random.Random(f"{plan.seed} order")
    turn = 0
    while time.monotonic() < end:
        order = rng.sample(attacks, len(attacks))
        for attack in order:
            turn += 1
            if turn % plan.at_once == part and time.monotonic() < end:
                until = min(end, time.monotonic() + plan.turn)
                await _together(plan, attack, tallies[attack.name], random.Random(f"{plan.seed} {turn}"), until)


async def _together(plan: Plan, attack: Attack, tally: Tally, rng: random.Random, end: float) -> None:
    first = rng.randrange(1 << 10)
    visits = [
        Visit(plan.port, plan.keys, first + number, random.Random(rng.random()), tally)
        for number in range(attack.connections)
    ]
    tasks = [asyncio.ensure_future(_again(attack, visit, end)) for visit in visits]
    await asyncio.wait(tasks, timeout=max(0.0, end - time.monotonic()))
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _again(attack: Attack, visit: Visit, end: float) -> None:
    while time.monotonic() < end:
        with suppress(TimeoutError, OSError):
            await attack.act(visit)
        await asyncio.sleep(_BREATH)


def main() -> None:
    os.nice(_NICE)
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    signal.alarm(_PREPARING)
    end_with_parent()
    tallies = uvloop.run(attacked(plan))
    print(msgspec.json.encode(tallies).decode(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
