"""The fitted step model: seconds as a sum of what a step holds.

    seconds = β₀ + Σ βᵢ · tokens in segment i + βᵣ · rows + β_h · [samples > 0] + βₛ · samples
              + βₗ · samples beyond the first knot + β_d · decode context + β_p · prefill context + βₘ · moved blocks

A step that samples reads the output layer's weights once, however many its samples are; from the first knot on another
kernel computes the layers, and the output layer for as many samples. No coefficient is negative. Tokens are cut into
segments at knots. `step_fit` finds them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import structs

from inflight.config.engine import default_depth
from inflight.core.types.features import Features
from inflight.counted import Amount, Blocks, Count, Positive, Rows, Seconds, Slots, Windows
from inflight.metrics.definitions import quantile
from inflight.records.checked import Malformed, converted, decoded

VERSION = 2
DEPTHS = (1, 2)  # steps in flight
MAX_RATIO = 1.10  # of a value to the largest one measured, from which on extrapolation is reported


Coefficient = Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # seconds; NaN and infinities are no JSON
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
ErrorsByKind = Mapping[str, tuple[Amount, Count]]  # kind → mean relative error, over how many


class StepModelError(ValueError):
    """A step model cannot be read or fitted."""


class EngineSize(TypedDict, total=False):
    """The size of the engine that was measured, as far as it is known."""

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
    state_blocks: Count  # blocks with as many bytes as one of these


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a model comes from.

    Attributes:
        machine: GPU, if it computed, CPU and cores.
        measured: ISO date.
        steps: number of steps of the fit.
        held_out: mean absolute relative error by kind of holdout steps, and their number. Of calibrated models equal
            steps count as one with their trimmed mean, against `usual` times the model's seconds (these are means, to
            which a few slow steps add).
        single: the error of each holdout step by itself.
        noise: the error of equal holdout steps against each other (`steps`).
        usual: median of measured over modelled seconds.
        others: share of the processors' time that other processes had meanwhile; None: not known.
        settings, capacity: of the engine that was measured.
    """

    source: str
    machine: str
    measured: str
    steps: Count
    held_out: ErrorsByKind = field(default_factory=dict)
    single: ErrorsByKind = field(default_factory=dict)
    noise: ErrorsByKind = field(default_factory=dict)
    usual: Amount = 1.0
    others: Amount | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    capacity: EngineSize = field(default_factory=EngineSize)


@dataclass(frozen=True, slots=True)
class FittedModel:
    """Coefficients in seconds: of a step (β₀), per token of each segment, per row, sample, decode position, prefill
    query-key pair and moved block.

    Attributes:
        output_layer: of a step that samples at all.
        late_sample: of a sample beyond the first knot, in addition.
        knots: tokens at which a new segment begins; token has one more entry than knots.
        ranges: feature → smallest and largest value measured.
        residuals: measured over modelled seconds at equidistant quantiles, from which noise is drawn.
    """

    step: Coefficient
    token: tuple[Coefficient, ...]
    row: Coefficient = 0.0
    sample: Coefficient = 0.0
    decode_context: Coefficient = 0.0
    prefill_context: Coefficient = 0.0
    moved_block: Coefficient = 0.0
    output_layer: Coefficient = 0.0
    late_sample: Coefficient = 0.0
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
        """The device of the engine that was measured; a CPU where the settings do not say."""
        return "cpu" if self.provenance is None else str(self.provenance.settings.get("device", "cpu"))

    @property
    def depth(self) -> int:
        """Steps in flight of the engine that was measured."""
        depth = None if self.provenance is None else self.provenance.settings.get("depth")
        return default_depth(self.device) if depth is None else int(depth)

    @property
    def engine_size(self) -> EngineSize:
        """The size of the engine that was measured, as far as it is known."""
        return EngineSize() if self.provenance is None else self.provenance.capacity

    def seconds(self, features: Features) -> float:
        total = (
            self.step
            + self.row * features.rows
            + self.sample * features.samples
            + self.decode_context * features.decode_context
            + self.prefill_context * features.prefill_context
            + self.moved_block * features.moved_blocks
        )
        for part in self._by_size(features.tokens, features.samples):
            total += part
        return total

    def decode_seconds(self, rows: int, contexts: Iterable[int]) -> list[float]:
        """Return the seconds of steps of so many decodes each, at these contexts, as `seconds` adds them up; parts of 0
        change no sum."""
        first, each = self.step + self.row * rows + self.sample * rows, self.decode_context
        part, *others = [one for one in self._by_size(rows, rows) if one] or [0.0]
        found = [first + each * context + part for context in contexts]
        for part in others:
            found = [one + part for one in found]
        return found

    def _by_size(self, tokens: int, samples: int) -> list[float]:
        """Return what depends on numbers of tokens and samples, in the order in which it is added."""
        parts = []
        if samples:
            parts.append(self.output_layer)
            if self.knots and samples > self.knots[0]:
                parts.append(self.late_sample * (samples - self.knots[0]))
        if not self.knots:
            return [*parts, self.token[0] * tokens]
        begin = 0
        for each, end in zip(self.token, (*self.knots, math.inf), strict=True):
            if tokens <= begin:
                break
            parts.append(each * (min(tokens, end) - begin))
            begin = int(end) if end < math.inf else begin
        return parts

    def extrapolates(self, features: Features) -> str | None:
        for name, (_, largest) in self.ranges.items():
            value = getattr(features, name)
            if value > MAX_RATIO * largest:
                return (
                    f"A step has {value:,.0f} {name.replace('_', ' ')}, but the model was fitted on at most "
                    f"{largest:,.0f}; calibrate with larger steps to trust it there."
                )
        return None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"kind": "step model", "version": VERSION, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> FittedModel:
        """Read a file that `save` wrote. Raises StepModelError."""
        try:
            content = decoded(_ANY, path.read_bytes())
            is_object = isinstance(content, dict)
            kind, version = (content.get("kind"), content.get("version")) if is_object else (None, None)
            if kind != "step model" or version != VERSION:
                raise Malformed(
                    "it names no kind" if kind is None else f"it is a {kind!r} of version {version!r}, not {VERSION}"
                )
            for item in fields(cls):
                if item.name not in content and item.name not in _LATER:
                    raise Malformed(f"it lacks {item.name!r}")
            model = converted(content, cls)
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
        unknown = set(self.ranges) - {item.name for item in structs.fields(Features)}
        if unknown:
            raise Malformed(f"it has a range of {min(unknown)!r}, which no step has")
        settings = {} if self.provenance is None else self.provenance.settings
        if settings.get("depth", 1) not in DEPTHS:
            raise Malformed(f"its engine had {settings['depth']!r} steps in flight, where engines have 1 or 2")


_ANY = msgspec.json.Decoder()
_LATER = ("output_layer", "late_sample")  # that older files lack


class NoisyModel:
    """A fitted model whose seconds scatter as the measured ones did: each step draws a factor from the residuals.
    Seeded, so that the same run has the same noise; draws are independent, which a busy machine's are not quite."""

    MAX_REDRAWN = 1024

    def __init__(self, model: FittedModel, seed: int):
        if len(model.residuals) < 2:
            raise StepModelError("The step model holds no residuals to draw noise from; calibrate again.")
        self._model = model
        self._random = random.Random(seed)
        self._last: deque[float] = deque(maxlen=self.MAX_REDRAWN)  # draws
        self._coming: list[float] = []  # draws that are repeated, the next one last

    @property
    def name(self) -> str:
        return f"{self._model.name}, with its noise"

    def seconds(self, features: Features) -> float:
        drawn = self._coming.pop() if self._coming else self._random.random()
        self._last.append(drawn)
        return self._model.seconds(features) * quantile(self._model.residuals, drawn)

    def draw_again(self, steps: int) -> None:
        """Draw again for the next steps what the last so many drew (at most MAX_REDRAWN), which were not taken."""
        self._coming += [self._last.pop() for _ in range(steps)]

    def extrapolates(self, features: Features) -> str | None:
        return self._model.extrapolates(features)
