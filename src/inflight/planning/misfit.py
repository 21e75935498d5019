"""Misfits of a model: machines of which none holds it and its longest request, with the nearest ones and the ways to
make room, and comparisons that have no meaning for it."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.planning.machine import Machine
from inflight.planning.rendering import sentence
from inflight.simulate.hardware import Precision
from inflight.simulate.roofline import Roofline

NEAREST = 3  # that are named
WEIGHT_SHARE = 0.9  # of the memory, that weights may take
_BITS: dict[Precision, int] = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "mxfp4": 4, "nvfp4": 4}
_ADVISED: tuple[Precision, ...] = ("fp8", "int8", "int4")  # for weights; no model lacks them


def does_not_fit(machines: Sequence[Machine], longest: int) -> str:
    """Return the sentence that says so. longest: tokens of the longest request."""
    nearest = sorted(machines, key=_nearness)[:NEAREST]
    values = {"count": len(machines), "machines": nearest, "longest": longest}
    return sentence("does_not_fit", **values, remedies=_remedies(nearest[0]))


def unfit_comparison(machines: Sequence[Machine], *, drafts: bool, layouts: bool, strategies: bool) -> str:
    """Return why a comparison that is asked for has no meaning for the model; "" where each has one.

    Args:
        machines: Of the model.
        drafts, layouts, strategies: Whether speculation is tried, and layouts or strategies are compared.
    """
    pooled = all(one.is_pooled for one in machines)
    if drafts and pooled:
        return sentence("no_drafts_of_vectors")
    if drafts and any(one.state_snapshots for one in machines):
        return sentence("no_drafts_with_states")
    if layouts and pooled:
        return sentence("no_layouts_of_vectors")
    return sentence("no_strategies_of_encoders") if strategies and any(one.is_encoder_only for one in machines) else ""


def _nearness(machine: Machine) -> tuple[float, float, int]:
    """Return a key that is small where most tokens fit, or, where none do, weights take the least of a GPU."""
    weights = 0.0 if machine.memory is None else machine.memory.weight_bytes
    return -machine.tokens, weights, machine.gpus


def _may_hold(machine: Machine, weights: Precision, present: Precision) -> bool:
    """Whether weights in another format leave room for keys and values, where all are as many times smaller."""
    memory = machine.memory
    return memory is None or memory.weight_bytes * _BITS[weights] / _BITS[present] < WEIGHT_SHARE * memory.memory_bytes


def _remedies(machine: Machine) -> list[str]:
    """Return what takes less memory than the present formats, or gives more."""
    remedies = [f"{machine.unit}s with more memory"]
    if isinstance(machine.model, Roofline):
        present = machine.model.weights, machine.model.kv
        fewer = [one for one in _ADVISED if _BITS[one] < _BITS[present[0]] and _may_hold(machine, one, present[0])]
        if fewer:
            *others, last = fewer
            remedies.append(f"--weights {', '.join(others) + ' or ' if others else ''}{last}")
        remedies += ["--kv fp8"] if _BITS[present[1]] > _BITS["fp8"] else []
    return remedies
