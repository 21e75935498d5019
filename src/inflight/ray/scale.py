"""Define how many replicas a server has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of one pool.

    Attributes:
        replicas: At the start, and the lowest number.
        max_replicas: Autoscaling adds replicas up to this number; None: no autoscaling.
    """

    replicas: int
    max_replicas: int | None = None

    @property
    def limit(self) -> int:
        """Highest number of replicas."""
        return self.max_replicas or self.replicas


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a server.

    Attributes:
        scale: Size of the pool that receives requests.
        address: Of a Ray cluster's head; None: start a Ray on this machine.
        router: Name of the routing policy.
        prefill: Size of the pool that computes prompts for the others; None: each replica computes its own.
    """

    scale: Scale
    address: str | None
    router: str
    prefill: Scale | None = None

    @property
    def started(self) -> int:
        """Number of replicas at the start."""
        return self.scale.replicas + (0 if self.prefill is None else self.prefill.replicas)

    @property
    def limit(self) -> int:
        """Highest number of replicas."""
        return self.scale.limit + (0 if self.prefill is None else self.prefill.limit)
