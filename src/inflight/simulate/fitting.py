"""Finding the coefficients of a fitted step model, and telling how far off they are on steps they have not seen.

Non-negative least squares on relative errors (each step weighs 1 / seconds²), so that long steps do not drown short
ones. A few steps that something else on the machine made long are left out of the fit by their residuals, but not out
of the reported errors; afterwards all coefficients are scaled so that the mean of measured over modelled seconds is 1,
because times to the end of an answer are sums of steps. Knots (see `fitted`) are added while they make the error on
left-out steps smaller by more than chance would.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from inflight.core.features import Features
from inflight.simulate.fitted import FittedModel, StepModelError
from inflight.simulate.latency import StepModel
from inflight.simulate.least_squares import Array, nnls
from inflight.simulate.steps import KINDS, Step

FEWEST = 12  # steps that a fit needs at least
FOLDS = 5
WORTH = 0.97  # of the error: a knot must bring it below
MOST_KNOTS = 4
EXACT = 1e-4  # error below which there is nothing to gain
OUTLIER = 4.0  # median absolute deviations
STALL = 10.0  # times as long as modelled: the machine stood still, and that is no step to expect
QUANTILES = 41  # of the residuals that noise is drawn from


def fit(steps: Sequence[Step]) -> FittedModel:
    """Raises StepModelError with fewer than 12 steps."""
    if len(steps) < FEWEST:
        raise StepModelError(f"There are {len(steps)} measured steps; a fit needs at least {FEWEST}, of several sizes.")
    knots: tuple[int, ...] = ()
    error = cross_validated(steps, knots)
    while len(knots) < MOST_KNOTS and error > EXACT:
        tried = [tuple(sorted((*knots, one))) for one in _candidates(steps) if one not in knots]
        errors = {each: cross_validated(steps, each) for each in tried}
        best = min(errors, key=lambda each: errors[each], default=None)
        if best is None or errors[best] > WORTH * error:
            break
        knots, error = best, errors[best]
    return _fit(steps, knots)


def cross_validated(steps: Sequence[Step], knots: tuple[int, ...]) -> float:
    """Median absolute relative error on left-out fifths."""
    return statistics.median(error for _, error in _left_out(steps, knots))


def held_out_errors(steps: Sequence[Step], knots: tuple[int, ...]) -> dict[str, tuple[float, int]]:
    """Mean absolute relative error on left-out fifths by kind, and the number of steps."""
    by_kind: dict[str, list[float]] = {}
    for step, error in _left_out(steps, knots):
        by_kind.setdefault(step.kind, []).append(error)
    return _means(by_kind)


def errors_of(model: StepModel, steps: Sequence[Step]) -> dict[str, tuple[float, int]]:
    """The same on steps that the model was not fitted on."""
    by_kind: dict[str, list[float]] = {}
    for step in steps:
        by_kind.setdefault(step.kind, []).append(abs(model.seconds(step.held) / step.seconds - 1))
    return _means(by_kind)


def scaled(model: FittedModel, factor: float) -> FittedModel:
    """The same model of a machine that takes `factor` times as long."""
    return replace(
        model,
        step=model.step * factor,
        token=tuple(each * factor for each in model.token),
        **{name: getattr(model, name) * factor for name in _TERMS},
    )


def settled(model: FittedModel, steps: Sequence[Step]) -> FittedModel:
    """Scaled to the mean of these steps, with their ranges and residuals."""
    ratios = np.array([one.seconds / max(model.seconds(one.held), 1e-12) for one in steps])
    mean = float(np.mean(np.minimum(ratios, STALL)))
    quantiles = np.quantile(ratios / mean, np.linspace(0, 1, QUANTILES))
    return replace(scaled(model, mean), ranges=_ranges(steps), residuals=tuple(float(one) for one in quantiles))


_TERMS = ("row", "sample", "decode_context", "prefill_context", "moved_block")


def _means(by_kind: dict[str, list[float]]) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {
        kind: (statistics.fmean(by_kind[kind]), len(by_kind[kind])) for kind in KINDS if kind in by_kind
    }
    every = [error for errors in by_kind.values() for error in errors]
    return {**found, "all": (statistics.fmean(every), len(every))} if every else {}


def _left_out(steps: Sequence[Step], knots: tuple[int, ...]) -> list[tuple[Step, float]]:
    """Every step once, with its error under a model that was fitted without its fifth. Fifths are taken by stride, so
    that each has steps of all kinds and times."""
    found = []
    for fold in range(FOLDS):
        rest = [one for index, one in enumerate(steps) if index % FOLDS != fold]
        model = _fit(rest, knots)
        found += [(one, abs(model.seconds(one.held) / one.seconds - 1)) for one in steps[fold::FOLDS]]
    return found


def _fit(steps: Sequence[Step], knots: tuple[int, ...]) -> FittedModel:
    seconds = np.array([one.seconds for one in steps])
    matrix = _columns([one.held for one in steps], knots) / seconds[:, None]
    kept = np.ones(len(steps), dtype=bool)
    for _ in range(3):
        beta = nnls(matrix[kept], np.ones(int(kept.sum())))
        ratio = 1.0 / np.maximum(matrix @ beta, 1e-12)
        middle = float(np.median(ratio))
        spread = max(float(np.median(np.abs(ratio - middle))), 1e-3)
        kept = np.abs(ratio - middle) <= OUTLIER * spread
    return settled(_model(beta, knots), steps)


def _columns(held: Sequence[Features], knots: tuple[int, ...]) -> Array:
    tokens = np.array([float(one.tokens) for one in held])
    edges = [0.0, *map(float, knots), np.inf]
    segments = [np.clip(tokens - low, 0.0, high - low) for low, high in itertools.pairwise(edges)]
    names = ("rows", "samples", "decode_context", "prefill_context", "moved_blocks")
    rest = [np.array([float(getattr(one, name)) for one in held]) for name in names]
    return np.stack([np.ones(len(held)), *segments, *rest], axis=1)


def _model(beta: Array, knots: tuple[int, ...]) -> FittedModel:
    values = [float(one) for one in beta]
    segments = len(knots) + 1
    row, sample, decode_context, prefill_context, moved_block = values[1 + segments :]
    token = tuple(values[1 : 1 + segments])
    return FittedModel(values[0], token, row, sample, decode_context, prefill_context, moved_block, knots)


def _candidates(steps: Sequence[Step]) -> list[int]:
    """Token counts between those that were seen, doubling and half-way."""
    seen = [one.held.tokens for one in steps]
    powers = {round(base * 2**power) for base in (1, 1.5) for power in range(1, 16)}
    return sorted(one for one in powers if min(seen) < one < max(seen))


def _ranges(steps: Sequence[Step]) -> dict[str, tuple[float, float]]:
    found = {}
    for item in fields(Features):
        values = [float(getattr(one.held, item.name)) for one in steps]
        found[item.name] = (min(values), max(values))
    return found
