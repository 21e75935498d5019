"""The state of one of several models, for answers and metrics: figures, and sentences made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """nbytes: of memory that it takes, or would take. in_flight: calls that have it; waiting: that wait for it.
    seconds: until it is loaded, as far as is known; 0.0 where it is, and for one that failed until it is tried again.
    failure: why it could not be loaded. idle_in: seconds until it is unloaded unless it is called; None: it stays."""

    name: str
    state: State
    nbytes: int
    is_pinned: bool
    in_flight: int
    waiting: int
    seconds: float
    failure: str = ""
    idle_in: float | None = None
