"""The heads of `--speculation heads` and `heads:FOLDER`: where they lie.

Knows files; how heads are read and draft, `execution.drafters.heads` knows.
"""

from __future__ import annotations

from inflight.build.limits import Limits
from inflight.execution.backends.protocol import KVShape
from inflight.execution.checkpoints.checkpoint import resolve_model
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.drafters.heads.heads_source import HeadsSource


def heads(
    name: str | None, computed: ComputedModel, limits: Limits, shape: KVShape, windows: tuple[int, ...]
) -> HeadsSource:
    """name: a folder or a hub id; None: those in the model's checkpoint. computed, shape, windows: of the model. Raises
    ModelError for heads that are not there, or do not go together with the model."""
    assert isinstance(computed, KernelModel)
    source = HeadsSource(
        computed,
        None if name is None else resolve_model(name),
        shape,
        limits.max_model_len,
        limits.max_rows,
        limits.max_tokens,
        limits.logit_rows,
    )
    source.check(windows)
    return source
