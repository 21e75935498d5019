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
