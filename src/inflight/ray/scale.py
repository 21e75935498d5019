"""How many replicas there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """replicas: at the start, and always, unless `most` says more; then as many as queues need (`autoscaling`)."""

    replicas: int
    most: int | None = None

    @property
    def places(self) -> int:
        """Replicas that there may be."""
        return self.most or self.replicas


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a server.

    Attributes:
        scale: Of the engines that requests are sent to.
        address: Of a Ray cluster; None: a Ray of this machine is started.
        router: By name.
        prefill: Replicas that compute prompts for the others; None: each computes its own.
    """

    scale: Scale
    address: str | None
    router: str
    prefill: Scale | None = None

    @property
    def started(self) -> int:
        """Replicas that there are at first."""
        return self.scale.replicas + (0 if self.prefill is None else self.prefill.replicas)

    @property
    def places(self) -> int:
        """Replicas that there may be."""
        return self.scale.places + (0 if self.prefill is None else self.prefill.places)
