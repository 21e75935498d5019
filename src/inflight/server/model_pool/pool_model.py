"""One of several models, as the pool is told of it. Knows names and settings; what the process is told, it hands on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.types.sampling import Adapter
from inflight.server.model_pool.resident import ModelNeeds
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """names: by which requests may call it; the first is its own. adapters: that may be called in its place. settings:
    of its answers and limits. setup: the first message to its process, given a number that no other one has."""

    names: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    needs: ModelNeeds
    settings: ServerSettings
    setup: Callable[[int], bytes]

    @property
    def name(self) -> str:
        return self.names[0]
