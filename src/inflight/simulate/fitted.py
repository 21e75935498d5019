"""The fitted step model: seconds as a sum of what a step holds, each term with a coefficient that is not negative.

    seconds = β₀ + Σ βᵢ · tokens in segment i + βᵣ · rows + βₛ · samples + β_d · decode context + β_p · prefill context
              + βₘ · moved blocks

The linear form calibrates well on any machine; tokens are cut into segments where the machine changes from being bound
by memory to being bound by arithmetic, so that a token may cost more (or less) beyond a ridge. A model keeps the
ranges that its coefficients rest on, and where they come from; `fitting` finds them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from inflight.config.engine import default_depth
from inflight.core.types.features import Features
from inflight.records.checked import Amount, Count, Malformed, Seconds, converted, decoded
from inflight.records.schema import Blocks, Positive, Rows, Slots, Windows

VERSION = 2
DEPTHS = (1, 2)  # steps in flight
BEYOND = 1.10  # times the largest value that was seen: nearer than that is no extrapolation worth reporting


Coefficient = Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # seconds; NaN and infinities are no JSON
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Errors = Mapping[str, tuple[Amount, Count]]  # kind → mean relative error, over how many


class StepModelError(ValueError):
    """A step model cannot be read or fitted."""


class Size(TypedDict, total=False):
    """Size of the engine that was measured, as far as it is known."""

    num_blocks: Blocks
    block_size: Positive
    max_rows: Rows
    max_model_len: Positive
    vocab_size: Positive
    host_blocks: Blocks
    copy_seconds: Seconds
    bytes_per_token: Seconds
    windows: Windows  # of the KV groups, where there are several or one has one
    state_snapshots: Slots  # of recurrent state, where the model has any


@dataclass(frozen=True, slots=True)
class Provenance:
    """machine: GPU, if it computed, CPU and cores. measured: ISO date. steps: how many the fit rests on.

    held_out: mean absolute relative error by kind of steps that the fit has not seen, and over how many. Where steps
    came several times, equal ones count as one with their middle, against `usual` times the model's seconds (these are
    means, to which a few slow steps add); single is then the error of each step by itself, and noise that of equal
    steps against each other (`steps`).

    others: share of the processors' time that others had while it was measured, None where that is not known. settings
    and capacity: of the engine that was measured."""

    source: str
    machine: str
    measured: str
    steps: Count
    held_out: Errors = field(default_factory=dict)
    single: Errors = field(default_factory=dict)
    noise: Errors = field(default_factory=dict)
    usual: Amount = 1.0
    others: Amount | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    capacity: Size = field(default_factory=Size)


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Seconds: step (β₀), per token of each segment, per row, sample, decode position, prefill query-key pair and moved
    block. knots: tokens at which a new segment begins; token has one more entry than knots.

    ranges: feature → least and greatest value seen. residuals: measured over modelled seconds at equidistant quantiles,
    from which noise is drawn.
    """

    step: Coefficient
    token: tuple[Coefficient, ...]
    row: Coefficient = 0.0
    sample: Coefficient = 0.0
    decode_context: Coefficient = 0.0
    prefill_context: Coefficient = 0.0
    moved_block: Coefficient = 0.0
    knots: tuple[Tokens, ...] = ()
    ranges: Mapping[str, tuple[Amount, Amount]] = field(default_factory=dict)
    residuals: tuple[Coefficient, ...] = ()
    provenance: Provenance | None = None

    @property
    def name(self) -> str:
        if self.provenance is None:
            return "stated coefficients"
        return f"fitted on {self.provenance.steps:,} steps of {self.provenance.source}"

    @property
    def device(self) -> str:
        """Where the engine that was measured computed, as its settings name it; a CPU where nothing is said."""
        return "cpu" if self.provenance is None else str(self.provenance.settings.get("device", "cpu"))

    @property
    def depth(self) -> int:
        """Steps that it had in flight."""
        said = None if self.provenance is None else self.provenance.settings.get("depth")
        return default_depth(self.device) if said is None else int(said)

    def seconds(self, held: Features) -> float:
        total = (
            self.step
            + self.row * held.rows
            + self.sample * held.samples
            + self.decode_context * held.decode_context
            + self.prefill_context * held.prefill_context
            + self.moved_block * held.moved_blocks
        )
        if not self.knots:
            return total + self.token[0] * held.tokens
        begin = 0
        for each, end in zip(self.token, (*self.knots, math.inf), strict=True):
            if held.tokens <= begin:
                break
            total += each * (min(held.tokens, end) - begin)
            begin = int(end) if end < math.inf else begin
        return total

    def extrapolates(self, held: Features) -> str | None:
        for name, (_, most) in self.ranges.items():
            value = getattr(held, name)
            if value > BEYOND * most:
                return (
                    f"A step has {value:,.0f} {name.replace('_', ' ')}, but the model was fitted on at most "
                    f"{most:,.0f}; calibrate with larger steps to trust it there."
                )
        return None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"kind": "step model", "version": VERSION, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> FittedModel:
        """Raises StepModelError."""
        try:
            held = decoded(_ANY, path.read_bytes())
            kind, version = (held.get("kind"), held.get("version")) if isinstance(held, dict) else (None, None)
            if kind != "step model" or version != VERSION:
                raise Malformed(f"it is a {kind!r} of version {version!r}, not {VERSION}")
            for item in fields(cls):
                if item.name not in held:
                    raise Malformed(f"it lacks {item.name!r}")
            model = converted(held, cls)
            model.check()
        except Malformed as fault:
            at = "" if fault.line is None else f", line {fault.line}"
            raise StepModelError(
                f"{path}{at} is no step model ({fault.cause}); give a file that `inflight calibrate` wrote, or a "
                "record."
            ) from None
        return model

    def check(self) -> None:
        """Check what types do not say. Raises Malformed."""
        if len(self.token) != len(self.knots) + 1:
            raise Malformed(f"it has {len(self.token)} coefficients of tokens for {len(self.knots)} knots")
        if any(later <= one for one, later in itertools.pairwise(self.knots)):
            raise Malformed("its knots do not rise")
        if not self.step + sum(self.token) > 0:
            raise Malformed("its steps take no time")
        unknown = set(self.ranges) - {item.name for item in fields(Features)}
        if unknown:
            raise Malformed(f"it has a range of {min(unknown)!r}, which no step has")
        said = {} if self.provenance is None else self.provenance.settings
        if said.get("depth", 1) not in DEPTHS:
            raise Malformed(f"its engine had {said['depth']!r} steps in flight, where engines have 1 or 2")


_ANY = msgspec.json.Decoder()


_LAST = 1024


class NoisyModel:
    """A fitted model whose seconds scatter as the measured ones did: each step draws a factor from the residuals.
    Seeded, so that the same run has the same noise; draws of successive steps are independent, as a busy machine's are
    not quite."""

    def __init__(self, model: FittedModel, seed: int):
        if len(model.residuals) < 2:
            raise StepModelError("The step model holds no residuals to draw noise from; calibrate again.")
        self._model = model
        self._random = random.Random(seed)
        self._last: deque[float] = deque(maxlen=_LAST)  # draws
        self._coming: list[float] = []  # draws that are to be made again, the next one last

    @property
    def name(self) -> str:
        return f"{self._model.name}, with its noise"

    def seconds(self, held: Features) -> float:
        residuals = self._model.residuals
        drawn = self._coming.pop() if self._coming else self._random.random()
        self._last.append(drawn)
        place = drawn * (len(residuals) - 1)
        low = int(place)
        factor = residuals[low] + (residuals[low + 1] - residuals[low]) * (place - low)
        return self._model.seconds(held) * factor

    def draw_again(self, steps: int) -> None:
        """The last so many steps, 1,024 at most, were asked for and never taken: the next ones draw what they drew."""
        self._coming += [self._last.pop() for _ in range(steps)]

    def extrapolates(self, held: Features) -> str | None:
        return self._model.extrapolates(held)
