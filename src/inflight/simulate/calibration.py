"""Calibration: what steps take on the machine at hand, from the real engine, in a few minutes.

Steps are measured in rounds that are alike (`measuring`), and of equal steps their middle is fitted: the machine's
speed drifts while it is measured, and the middle of rounds far apart sees less of it. Designed steps are first told by
what they take when the engine serves. The model is judged by steps of a traffic that was not fitted; how far equal ones
of them lie apart is the machine's noise.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

import numpy as np

from inflight.core.types.plan import Capacity
from inflight.records.checked import converted
from inflight.simulate.fitted import FittedModel, Provenance, Size
from inflight.simulate.fitting import fit, nnls, scaled, settled, usual
from inflight.simulate.measuring import CROWDED, Measured, Round, Rounds, Tell, middles, quiet
from inflight.simulate.sources import machine
from inflight.simulate.steps import Step, errors_of, noise_of

# Rounds that the time is planned for; that are measured on a machine that turns out slower: of three, two remain where
# others used the processors, and in one alone nothing would have an equal that tells of the noise.
ROUNDS, FEWEST_ROUNDS = 5, 3
ASKED = 0.05  # error, or noise, above which a reader must know of it


def calibrate(measured: Measured, seconds: float, tell: Tell = lambda sentence: None) -> FittedModel:
    """seconds: to measure, about, on the engine's clock. Raises StepModelError where a step fails."""
    clock = measured.loop.clock
    began = clock.now()
    rounds, made = Rounds(measured, seconds / (ROUNDS + 1), tell), list[Round]()
    longest = 0.0
    while len(made) < FEWEST_ROUNDS or clock.now() + longest < began + seconds:
        made.append(rounds.measure())
        longest = max(longest, sum(made[-1].seconds))
    kept = quiet(made)
    left_out = f", of which {len(made) - len(kept)} are left out: others used the processors" * (len(kept) < len(made))
    tell(f"Measured {len(made)} rounds in {clock.now() - began:.0f} s{left_out}.")
    return judged(kept, measured)


def judged(rounds: Sequence[Round], measured: Measured) -> FittedModel:
    """Fitted on the rounds' designed and learnt steps, with what the judged ones say of it."""
    designed, learnt, unseen = (
        list(itertools.chain.from_iterable(getattr(one, name) for one in rounds))
        for name in ("designed", "learnt", "judged")
    )
    model = _with_copies(fitted(designed, [one.learnt for one in rounds]), measured.executor.capacity)
    others = [one.others for one in rounds if one.others is not None]
    share = usual(model, middles(learnt))
    return replace(
        model,
        provenance=Provenance(
            source="this machine's engine",
            machine=f"{measured.gpu}, {machine()}" if measured.gpu else machine(),
            measured=datetime.now(UTC).date().isoformat(),
            steps=len(designed) + len(learnt),
            held_out=errors_of(scaled(model, share), middles(unseen)),
            single=errors_of(model, unseen),
            noise=noise_of(unseen),
            usual=share,
            others=statistics.fmean(others) if others else None,
            settings=measured.settings,
            capacity=_size_of(measured.executor.capacity, measured.bytes_per_token),
        ),
    )


def fitted(designed: Sequence[Step], learnt: Sequence[Sequence[Step]]) -> FittedModel:
    """designed: seconds of the steps themselves; learnt: of rounds of the loop, by rounds of measuring."""
    alone, serving = middles(designed), middles(itertools.chain(*learnt))
    model = fit([*_as_served(alone, serving), *serving])
    return replace(settled(model, *learnt), ranges=model.ranges)


def _as_served(alone: Sequence[Step], serving: Sequence[Step]) -> list[Step]:
    """Designed steps with what serving adds to them: a share (caches have seen other things in between), and what the
    host does for every step and every row of it. None of it is negative."""
    own = fit(alone)
    seconds = np.array([one.seconds for one in serving])
    modelled = np.array([own.seconds(one.held) for one in serving])
    rows = np.array([float(one.held.rows) for one in serving])
    columns = np.stack([modelled, np.ones(len(seconds)), rows], axis=1)
    share, step, row = nnls(columns / seconds[:, None], 1.0 - modelled / seconds)
    return [Step(one.held, (1 + share) * one.seconds + step + row * one.held.rows) for one in alone]


def _with_copies(model: FittedModel, capacity: Capacity) -> FittedModel:
    """No block was moved meanwhile, but what moving one takes was measured where the engine swaps."""
    known = {name: both for name, both in model.ranges.items() if name != "moved_blocks" or not capacity.copy_seconds}
    return replace(model, moved_block=capacity.copy_seconds, ranges=known)


def warnings(model: FittedModel) -> list[str]:
    """Sentences for whoever is to trust the model."""
    provenance = model.provenance
    if provenance is None:
        return []
    found = []
    if provenance.others is not None and provenance.others > CROWDED:
        found.append(
            f"Others had {provenance.others:.0%} of the processors' time meanwhile; calibrate again when this machine "
            "is left alone."
        )
    noise, error = (each.get("all", (0.0, 0))[0] for each in (provenance.noise, provenance.held_out))
    if noise > ASKED:
        found.append(
            f"Equal steps are {noise:.1%} off their middle on average: so much is this machine's noise, and no model "
            "can tell single steps better."
        )
    if error > ASKED:
        found.append(f"Steps that were not fitted are {error:.1%} off on average; look at the kinds above.")
    return found


def _size_of(capacity: Capacity, bytes_per_token: float | None) -> Size:
    size = converted(asdict(capacity), Size)
    if capacity.windows == (0,):
        del size["windows"]
    if not capacity.state_snapshots:
        del size["state_snapshots"]
    if bytes_per_token is not None:
        size["bytes_per_token"] = bytes_per_token
    return size
