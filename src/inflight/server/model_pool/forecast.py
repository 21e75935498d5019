"""How long a model will have to be waited for, if what is known goes on: loads and calls take as long as the last ones.

Knows models, those in the line before one, and the rules by which others give way; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.server.model_pool.resident import Resident, givers, victims

_OF_A_LOAD = 0.1  # that is left at least of one that takes longer than the last


def seconds_until(
    asked: Resident, models: Sequence[Resident], line: Sequence[Resident], budget: int, now: float
) -> float:
    """Until the model is loaded. line: those that are to be loaded, in their order. budget: bytes for all."""
    if asked.state == "loaded":
        return 0.0
    time, stays = now, [one for one in models if one.state in ("loading", "loaded")]
    loaded_at: dict[str, float] = {}  # of those that are not in memory yet
    for one in models:
        if one.state == "loading":
            time = loaded_at[one.name] = max(one.began + one.load_seconds, now + _OF_A_LOAD * one.load_seconds)
        elif one.state == "draining" and one.under_way:
            time = max(time, now + one.call_seconds)
    ahead = line[: line.index(asked)] if asked in line else line
    for one in () if asked in stays else (*ahead, asked):
        time = loaded_at[one.name] = _loaded_at(one, time, stays, loaded_at, budget)
    return time - now


def _loaded_at(one: Resident, time: float, stays: list[Resident], loaded_at: dict[str, float], budget: int) -> float:
    """When the model is loaded, if it is the next from that time on. stays: those in memory then; it joins them.
    loaded_at: when those of them that are not there yet will be."""
    free = budget - sum(other.nbytes for other in stays)
    if one.nbytes > free:
        there = givers(stays)
        coming = [giver for giver in stays if giver not in there and not giver.needs.is_pinned]
        for victim in victims(one.nbytes, [*there, *coming], free):
            stays.remove(victim)
            if victim.name in loaded_at:
                time = max(time, victim.held_until(one, loaded_at[victim.name]) + victim.call_seconds)
            else:
                time = max(time, victim.gives_way_at(one) + (victim.call_seconds if victim.under_way else 0.0))
    stays.append(one)
    return time + one.load_seconds
