"""Predict how many tokens an output still gets, from the model's hidden states, and learn from those that ended.

The state is the residual stream half-way through the layers, which on real models says more than the last layer's, as
TRAIL found (arXiv 2410.01035), at the position that samples. Each of its numbers is standardized; the logarithms of
the prompt's length, the output so far and max_tokens join it, and whether a grammar limits the output. `hazards` makes
probabilities of that, and `calibration` corrects them. Ends of prompts have hazards of their own; those of later states
read the state at the prompt's end, too, which says most.

A probe learns from all tenants, so that one may lie to it. With half of all outputs, all of one length, a tenant
reverses the order of one in eight pairs of others' outputs at most where its texts are its own, and of one in three
where it sends theirs (`test_probe`). How long a request waits by such an order is bounded (`core/policies/sjf.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.execution.length_probe.calibration import CELLS, Calibration
from inflight.execution.length_probe.hazards import STARTS, Floats, Hazards

OWN = 4  # features beside the state's
STATE_SCALE = 4.0  # norm of a standardized state among the features
SCALED_BY = 64  # states whose mean and deviation scale all
MIN_ENDED = 64  # outputs that ended by themselves, before predictions are given
MINIBATCHES = 2  # for each output that ended; with 8 predictions are no better
CLIPPED = 5.0  # deviations that a number of a state counts for at most


class Asked(NamedTuple):
    """Facts about an output beside its state."""

    prompt_tokens: int
    so_far: int
    max_tokens: int
    has_grammar: bool


class Read(NamedTuple):
    """A state as it was read.

    Attributes:
        x: Its features.
        probabilities: Of the bins, as they were predicted, before calibration.
        so_far: Output tokens at that time.
    """

    x: Floats
    probabilities: Floats
    so_far: int


class LengthProbe:
    def __init__(self, hidden_size: int, salt: str):
        """salt: Names the model and the adapter."""
        self.salt, self.ended = salt, 0
        self._sum, self._squares = np.zeros(hidden_size), np.zeros(hidden_size)
        self._scaling = 0  # states in these sums
        seed = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little")
        # Of the prompt's end, and of later states.
        self._hazards = Hazards(OWN + hidden_size, seed), Hazards(OWN + 2 * hidden_size, seed)
        self._calibrations = Calibration(), Calibration()

    @property
    def is_ready(self) -> bool:
        """Whether enough outputs have ended."""
        return self.ended >= MIN_ENDED

    def read(self, states: Floats, asked: Sequence[Asked], firsts: Sequence[Read | None]) -> list[Read | None]:
        """Return what is kept of hidden states.

        Args:
            states: float32[S, E].
            asked: What is known of each output.
            firsts: What was kept of its prompt's end, where the state is a later one.

        Returns:
            None for a state that is not finite, one that came too early, and a later one without its prompt's end.
        """
        finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(states), axis=1)
        if self._scaling < SCALED_BY:
            known = states[finite].astype(np.float64)
            self._sum += known.sum(axis=0)
            self._squares += np.square(known).sum(axis=0)
            self._scaling += len(known)
            return [None] * len(asked)
        scaled = self._scaled(np.where(finite[:, None], states, 0.0))
        found: list[Read | None] = []
        for index, (one, first) in enumerate(zip(asked, firsts, strict=True)):
            if not finite[index] or (one.so_far > 0 and first is None):
                found.append(None)
                continue
            before = () if first is None or not one.so_far else (first.x[OWN:],)
            x = np.concatenate((_own(one), *before, scaled[index]))
            found.append(Read(x, self._hazards[one.so_far > 0].probabilities(x[None])[0], one.so_far))
        return found

    def _scaled(self, states: Floats) -> Floats:
        mean = self._sum / self._scaling
        deviation = np.sqrt(np.maximum(self._squares / self._scaling - np.square(mean), 1e-12))
        scale = STATE_SCALE / np.sqrt(len(mean))
        scaled: Floats = (np.clip((states - mean) / deviation, -CLIPPED, CLIPPED) * scale).astype(np.float32)
        return scaled

    def predictions(self, reads: Sequence[Read]) -> list[Floats]:
        """Return calibrated probabilities of the bins of remaining tokens (`STARTS`)."""
        return [self._calibrations[one.so_far > 0].applied(one.probabilities[None])[0] for one in reads]

    def learn(self, reads: Sequence[Read], tokens: int, ended: bool) -> None:
        """Learn from an output. tokens: of it in all. ended: by itself; otherwise max_tokens cut it."""
        reads = [one for one in reads if one.so_far < tokens]
        if not reads:
            return
        for one in reads:
            later = one.so_far > 0
            self._calibrations[later].add(_reached(one.probabilities, tokens - one.so_far, ended), ended)
            self._hazards[later].add(one.x, tokens - one.so_far, ended)
        for later in {one.so_far > 0 for one in reads}:
            self._hazards[later].learn(MINIBATCHES)
        self.ended += ended

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as arrays by name."""
        return {
            "ended": np.array(self.ended),
            "sum": self._sum,
            "squares": self._squares,
            "scaling": np.array(self._scaling),
            "calibrations": np.array([one.histogram for one in self._calibrations]),
            **{f"{head} {name}": one for head, of in self._by_head() for name, one in of.state().items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what another probe of the same salt has learnt. Raises ValueError where it cannot be that."""
        mine = self.state()
        for name, values in mine.items():
            given = state.get(name)
            if given is None or given.shape != values.shape or given.dtype != values.dtype:
                raise ValueError(f"its {name} is missing, or of another shape")
            if not np.isfinite(given).all():
                raise ValueError(f"its {name} has a number that is not finite")
        if int(state["ended"]) < 0 or int(state["scaling"]) < 0 or (state["calibrations"] <= 0).any():
            raise ValueError("it counts fewer than no outputs")
        for head, hazards in self._by_head():
            hazards.restore({name.removeprefix(f"{head} "): one for name, one in state.items()})
        self.ended, self._scaling = int(state["ended"]), int(state["scaling"])
        self._sum, self._squares = state["sum"], state["squares"]
        for one, histogram in zip(self._calibrations, state["calibrations"], strict=True):
            one.histogram = histogram.reshape(CELLS)

    def _by_head(self) -> tuple[tuple[str, Hazards], ...]:
        return tuple(zip(("first", "later"), self._hazards, strict=True))


def _own(asked: Asked) -> Floats:
    scaled = (np.log2(1.0 + one) / 8 for one in (asked.prompt_tokens, asked.so_far, asked.max_tokens))
    return np.array((*scaled, float(asked.has_grammar)), np.float32)


def _reached(probabilities: Floats, remaining: int, ended: bool) -> float:
    """Return the cumulative probability of a number of remaining tokens, half of its own included where it ended."""
    index = int(np.searchsorted(STARTS, remaining, "right")) - 1
    width = STARTS[index + 1] - STARTS[index] if index + 1 < len(STARTS) else 1
    within = (remaining - STARTS[index] + (0.5 if ended else 1.0)) / width
    return float(min(1.0, probabilities[:index].sum() + probabilities[index] * within))
