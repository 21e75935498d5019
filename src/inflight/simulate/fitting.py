"""Finding the coefficients of a fitted step model.

Non-negative least squares on relative errors (each step weighs 1 / seconds²), so that long steps do not drown short
ones. A few steps that something else on the machine made long are left out of the fit by their residuals, but not out
of any error that is reported; afterwards all coefficients are scaled so that the mean of measured over modelled seconds
is 1, because times to the end of an answer are sums of steps. Knots (see `fitted`) are added while they make the error
on left-out steps smaller by more than chance would.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from inflight.core.types.features import Features
from inflight.simulate.fitted import FittedModel, StepModelError
from inflight.simulate.steps import Errors, Step, by_kind

MIN_STEPS = 12  # steps that a fit needs at least
FOLDS = 5
RUN, RUNS = 50, 25  # steps in a row that are left out together at most; in how many at least, if there are enough
WORTH = 0.97  # of the error: a knot must bring it below
MAX_KNOTS = 4
EXACT = 1e-4  # error below which there is nothing to gain
OUTLIER = 4.0  # median absolute deviations
STALL = 10.0  # times as long as modelled: the machine stood still, and that is no step to expect
QUANTILES = 41  # of the residuals that noise is drawn from
_HELD = ("rows", "samples", "decode_context", "prefill_context", "moved_blocks")  # of Features, beside tokens
_TERMS = ("row", "sample", "decode_context", "prefill_context", "moved_block")  # of FittedModel, in the same order


def fit(steps: Sequence[Step]) -> FittedModel:
    """Fit coefficients and knots. Raises StepModelError with fewer than 12 steps."""
    if len(steps) < MIN_STEPS:
        raise StepModelError(
            f"There are {len(steps)} measured steps; a fit needs at least {MIN_STEPS}, of several sizes."
        )
    table = _table(steps)
    knots: tuple[int, ...] = ()
    error = _cross_validated(table, knots)
    while len(knots) < MAX_KNOTS and error > EXACT:
        tried = [tuple(sorted((*knots, one))) for one in _candidates(table) if one not in knots]
        errors = {each: _cross_validated(table, each) for each in tried}
        best = min(errors, key=lambda each: errors[each], default=None)
        if best is None or errors[best] > WORTH * error:
            break
        knots, error = best, errors[best]
    return normalized(_model(_solved(table, knots), knots), steps)


def held_out_errors(steps: Sequence[Step], knots: tuple[int, ...]) -> Errors:
    """Return the mean absolute relative error on left-out fifths by kind, and the number of steps."""
    errors = _left_out(_table(steps), knots)
    return by_kind((one.kind, float(error)) for one, error in zip(steps, errors, strict=True))


def normalized(model: FittedModel, *rounds: Sequence[Step]) -> FittedModel:
    """Scale a model to the mean of these steps, and add their ranges and residuals. Of several rounds of steps the
    median of their means counts: something else that used the machine during some of them is nothing to expect."""
    ratios = [_ratios(model, steps) for steps in rounds]
    mean = float(np.median([np.mean(np.minimum(each, STALL)) for each in ratios]))
    every = np.concatenate(ratios)
    quantiles = np.quantile(every / np.mean(np.minimum(every, STALL)), np.linspace(0, 1, QUANTILES))
    residuals = tuple(float(one) for one in quantiles)
    steps = [one for each in rounds for one in each]
    return replace(scaled(model, mean), ranges=ranges(steps), residuals=residuals)


def ranges(steps: Sequence[Step]) -> dict[str, tuple[float, float]]:
    """Return the least and the greatest value of every feature."""
    values = {item.name: [float(getattr(one.held, item.name)) for one in steps] for item in fields(Features)}
    return {name: (min(every), max(every)) for name, every in values.items()}


def median_ratio(model: FittedModel, steps: Sequence[Step]) -> float:
    """Return the median of measured over modelled seconds."""
    return float(np.median(_ratios(model, steps)))


def scaled(model: FittedModel, factor: float) -> FittedModel:
    """Return the model of a machine that takes `factor` times as long."""
    return replace(
        model,
        step=model.step * factor,
        token=tuple(each * factor for each in model.token),
        **{name: getattr(model, name) * factor for name in _TERMS},
    )


def _ratios(model: FittedModel, steps: Sequence[Step]) -> Array:
    """Measured over modelled seconds."""
    return np.array([one.seconds / max(model.seconds(one.held), 1e-12) for one in steps])


def _table(steps: Sequence[Step]) -> Array:
    """float64[steps, 7]: seconds, tokens, and the other features in the order of _HELD."""
    return np.array([[one.seconds, one.held.tokens, *(getattr(one.held, name) for name in _HELD)] for one in steps])


def _cross_validated(table: Array, knots: tuple[int, ...]) -> float:
    """Mean absolute relative error on left-out fifths, without the worst tenth."""
    errors = np.sort(_left_out(table, knots))
    return float(np.mean(errors[: max(1, len(errors) * 9 // 10)]))


def _left_out(table: Array, knots: tuple[int, ...]) -> Array:
    """Return the error of every step under a model that was fitted without its fifth. A fifth is made of runs of steps,
    because a step resembles the ones next to it, and of many, so that each has steps of all kinds and times."""
    run = max(1, min(RUN, len(table) // RUNS))
    folds = np.arange(len(table)) // run % FOLDS
    seconds, columns, errors = table[:, 0], _columns(table, knots), np.zeros(len(table))
    for fold in range(FOLDS):
        left = folds == fold
        predicted = np.maximum(columns @ _solved(table[~left], knots), 1e-12)
        mean = np.mean(np.minimum(seconds[~left] / predicted[~left], STALL))
        errors[left] = np.abs(mean * predicted[left] / seconds[left] - 1)
    return errors


def _solved(table: Array, knots: tuple[int, ...]) -> Array:
    """The coefficients of _columns."""
    matrix = _columns(table, knots) / table[:, :1]
    kept = np.ones(len(table), dtype=bool)
    for _ in range(3):
        beta = nnls(matrix[kept], np.ones(int(kept.sum())))
        ratio = 1.0 / np.maximum(matrix @ beta, 1e-12)
        middle = float(np.median(ratio))
        spread = max(float(np.median(np.abs(ratio - middle))), 1e-3)
        kept = np.abs(ratio - middle) <= OUTLIER * spread
    return beta


def _columns(table: Array, knots: tuple[int, ...]) -> Array:
    """Return the factors of the coefficients: the step, tokens of each segment, and the rest as it stands."""
    edges = [0.0, *map(float, knots), np.inf]
    segments = [np.clip(table[:, 1] - low, 0.0, high - low) for low, high in itertools.pairwise(edges)]
    return np.column_stack([np.ones(len(table)), *segments, table[:, 2:]])


def _model(beta: Array, knots: tuple[int, ...]) -> FittedModel:
    step, *rest = (float(one) for one in beta)
    tokens, held = rest[: len(knots) + 1], rest[len(knots) + 1 :]
    row, sample, decode_context, prefill_context, moved_block = held
    return FittedModel(step, tuple(tokens), row, sample, decode_context, prefill_context, moved_block, knots)


def _candidates(table: Array) -> list[int]:
    """Token counts between those that were seen, doubling and half-way."""
    powers = {round(base * 2**power) for base in (1, 1.5) for power in range(1, 16)}
    return sorted(one for one in powers if table[:, 1].min() < one < table[:, 1].max())


Array = npt.NDArray[np.float64]


def nnls(matrix: Array, target: Array) -> Array:
    """Return x ≥ 0 that minimises |matrix · x - target|; matrix float64[n, k], target float64[n].

    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, on the normal equations as Bro and de Jong do
    (J. Chemometrics 11, 1997): unknowns enter the set of free ones by the steepest descent, and leave it on the way to
    a solution that would make them negative. Columns are scaled first; one of zeros gets 0.
    """
    scale = np.sqrt((matrix * matrix).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    gram, wanted = scaled.T @ scaled, scaled.T @ target
    found = np.zeros(matrix.shape[1])
    free = np.zeros(matrix.shape[1], dtype=bool)
    for _ in range(10 * len(found)):
        descent = np.where(free, -np.inf, wanted - gram @ found)
        best = int(np.argmax(descent))
        if descent[best] <= 1e-10:
            break
        free[best] = True
        while True:
            tried = np.zeros_like(found)
            tried[free] = np.linalg.lstsq(gram[np.ix_(free, free)], wanted[free], rcond=None)[0]
            falling = free & (tried <= 0)
            if not falling.any():
                found = tried
                break
            share = np.min(found[falling] / np.maximum(found[falling] - tried[falling], 1e-300))
            found += share * (tried - found)
            free &= found > 1e-14
            found[~free] = 0.0
            if not free.any():
                break
    result: Array = found / scale
    return result
