"""Where step models come from: a file of `inflight calibrate`, or a record that is fitted on the spot.

Knows files; what else they tell of the engine that was measured (its memory, its limits) is handed on.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inflight.records.checked import converted
from inflight.records.schema import header_of, of_kind, read_records, values_of
from inflight.simulate.fitted import FittedModel, Provenance, Size
from inflight.simulate.fitting import fit, held_out_errors
from inflight.simulate.steps import rounds, timed_steps

_LOOK = 1 << 16  # bytes of a file's beginning that tell a record from a step model


def read_step_model(path: Path) -> FittedModel:
    """Raises StepModelError, RecordError."""
    with path.open("rb") as file:
        first = file.readline(_LOOK)
    if b'"kind":"header"' in first.replace(b" ", b""):
        return fitted_on_record(path)
    return FittedModel.load(path)


def fitted_on_record(path: Path) -> FittedModel:
    records = list(read_records(path))
    header = header_of(records)
    steps = rounds(timed_steps(of_kind(records, "step")))
    model = fit(steps)
    return replace(
        model,
        provenance=Provenance(
            source=f"the record {path.name}",
            machine="the record's",
            measured=header.get("created", "")[:10],
            steps=len(steps),
            held_out=held_out_errors(steps, model.knots),
            settings=values_of(header),
            capacity=converted(header["capacity"], Size),
        ),
    )


def machine() -> str:
    """CPU and cores of this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"


@dataclass(frozen=True, slots=True)
class Known:
    """Of the engine that was measured, where the step model says it; None: it does not."""

    num_blocks: int | None = None
    block_size: int | None = None
    max_rows: int | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    bytes_per_token: float | None = None
    copy_seconds: float = 0.0
    windows: tuple[int, ...] = (0,)


def known_of(model: FittedModel) -> Known:
    held: Mapping[str, Any] = model.provenance.capacity if model.provenance is not None else {}
    return Known(**{name: held[name] for name in Known.__dataclass_fields__ if name in held})
