"""Fit a step model: how the coefficients and knots of `fitted.FittedModel` are found.

The fit is non-negative least squares on relative errors, without outliers, scaled so that the mean of measured over
modelled seconds is 1, because end-to-end times are sums of steps. Knots are added while they lower the error on
left-out steps by more than chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from inflight.core.types.features import Features
from inflight.simulate.fitted import FittedModel, StepModelError
from inflight.simulate.nnls import Array, nnls
from inflight.simulate.steps import Errors, Step, by_kind

MIN_STEPS = 12  # steps that a fit needs at least
FOLDS = 5
RUN, RUNS = 50, 25  # steps in a row that are left out together at most; in how many at least, if there are enough
WORTH = 0.97  # of the error: a knot must bring it below
MAX_KNOTS = 4
EXACT = 1e-4  # error below which there is nothing to gain
OUTLIER = 4.0  # median absolute deviations
MAX_STALL_RATIO = 10.0  # of measured to modelled seconds, to which stalls of the machine are cut
QUANTILES = 41  # of the residuals that noise is drawn from
_FEATURES = ("samples", "rows", "decode_context", "prefill_context", "moved_blocks")  # of Features, beside tokens
# Of FittedModel, in the order of the columns behind those of tokens.
_TERMS = ("output_layer", "late_sample", "sample", "row", "decode_context", "prefill_context", "moved_block")


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
    mean = float(np.median([np.mean(np.minimum(each, MAX_STALL_RATIO)) for each in ratios]))
    every = np.concatenate(ratios)
    quantiles = np.quantile(every / np.mean(np.minimum(every, MAX_STALL_RATIO)), np.linspace(0, 1, QUANTILES))
    residuals = tuple(float(one) for one in quantiles)
    steps = [one for each in rounds for one in each]
    return replace(scaled(model, mean), ranges=ranges(steps), residuals=residuals)


def ranges(steps: Sequence[Step]) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value of every feature that the model is of."""
    names = [item.name for item in structs.fields(Features) if item.name in ("tokens", *_FEATURES)]
    values = {name: [float(getattr(one.features, name)) for one in steps] for name in names}
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
    """Return measured over modelled seconds."""
    return np.array([one.seconds / max(model.seconds(one.features), 1e-12) for one in steps])


def _table(steps: Sequence[Step]) -> Array:
    """float64[steps, 7]: seconds, tokens, and the other features in the order of _FEATURES."""
    return np.array(
        [[one.seconds, one.features.tokens, *(getattr(one.features, name) for name in _FEATURES)] for one in steps]
    )


def _cross_validated(table: Array, knots: tuple[int, ...]) -> float:
    """Return the mean absolute relative error on left-out fifths, without the worst tenth."""
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
        mean = np.mean(np.minimum(seconds[~left] / predicted[~left], MAX_STALL_RATIO))
        errors[left] = np.abs(mean * predicted[left] / seconds[left] - 1)
    return errors


def _solved(table: Array, knots: tuple[int, ...]) -> Array:
    """Return the coefficients of _columns."""
    matrix = _columns(table, knots) / table[:, :1]
    kept = np.ones(len(table), dtype=bool)
    for _ in range(3):
        beta = nnls(matrix[kept], np.ones(int(kept.sum())))
        ratio = 1.0 / np.maximum(matrix @ beta, 1e-12)
        median = float(np.median(ratio))
        spread = max(float(np.median(np.abs(ratio - median))), 1e-3)
        kept = np.abs(ratio - median) <= OUTLIER * spread
    return beta


def _columns(table: Array, knots: tuple[int, ...]) -> Array:
    """Return the factors of the coefficients: the step, tokens of each segment, and those of _TERMS."""
    edges = [0.0, *map(float, knots), np.inf]
    segments = [np.clip(table[:, 1] - low, 0.0, high - low) for low, high in itertools.pairwise(edges)]
    samples = table[:, 2]
    late = np.maximum(samples - knots[0], 0.0) if knots else np.zeros(len(table))
    return np.column_stack([np.ones(len(table)), *segments, samples > 0, late, table[:, 2:]])


def _model(beta: Array, knots: tuple[int, ...]) -> FittedModel:
    step, *rest = (float(one) for one in beta)
    tokens, terms = rest[: len(knots) + 1], rest[len(knots) + 1 :]
    output_layer, late_sample, sample, row, decode_context, prefill_context, moved_block = terms
    return FittedModel(
        step,
        tuple(tokens),
        knots=knots,
        output_layer=output_layer,
        late_sample=late_sample,
        sample=sample,
        row=row,
        decode_context=decode_context,
        prefill_context=prefill_context,
        moved_block=moved_block,
    )


def _candidates(table: Array) -> list[int]:
    """Return candidate knots between the measured token counts, four to an octave."""
    powers = {round(base * 2**power) for base in (1, 1.25, 1.5, 1.75) for power in range(1, 16)}
    return sorted(one for one in powers if table[:, 1].min() < one < table[:, 1].max())
