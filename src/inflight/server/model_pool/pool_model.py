"""One of several models, as the pool needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inflight.core.types.sampling import Adapter
from inflight.server.model_pool.resident import ModelNeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolModel:
    """A model that the pool loads and unloads.

    Attributes:
        names: That requests may call it by; the first is its own.
        adapters: That requests may name instead.
        setup: Returns the first message to its process; is given a number that no other process has.
    """

    names: tuple[str, ...]
    adapters: tuple[Adapter, ...]
    needs: ModelNeeds
    setup: Callable[[int], bytes]

    @property
    def name(self) -> str:
        return self.names[0]


class PoolLease:
    """Keeps a model in memory until it is released."""

    __slots__ = ("_release", "name", "serial")

    def __init__(self, name: str, serial: int, release: Callable[[], None]):
        """serial: of the engine's process."""
        self.name, self.serial = name, serial
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """End the lease; may be called twice."""
        release, self._release = self._release, None
        if release is not None:
            release()
