"""Whom a load client asks: address, endpoint, patience.

Knows nothing of what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Endpoint = Literal["completions", "chat"]


class BenchError(ValueError):
    """A measurement cannot be made; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """url: without a path, as http://127.0.0.1:8000, or with the part before /v1. headers: sent with every request.

    timeout_s: for one request, from its sending to its end; what takes longer has failed. connect_timeout_s: to
    connect. retries: how often a request is sent again that was told to come later (429 or 503 with Retry-After); 0: it
    counts as rejected at once.
    """

    url: str
    endpoint: Endpoint = "completions"
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    retries: int = 0

    @property
    def path(self) -> str:
        return "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"
