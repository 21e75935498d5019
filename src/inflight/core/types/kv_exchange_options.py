"""How an engine exchanges keys and values of prompts with others. Knows numbers and addresses; opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["prefill", "decode", "both"]
Way = Literal["auto", "tcp", "shm", "nixl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVExchangeOptions:
    """role: whether blocks are handed over, taken over, or both. host, port: where peers connect, as they are told; 0:
    at any free port. way: how blocks travel. timeout: seconds of a whole pull, from when it is asked for, what the peer
    has still to compute included. hold: seconds for which a computed prompt waits for whoever takes it."""

    role: Role
    host: str = "127.0.0.1"
    port: int = 0
    way: Way = "auto"
    timeout: float = 30.0
    hold: float = 60.0

    @property
    def gives(self) -> bool:
        return self.role != "decode"

    @property
    def takes(self) -> bool:
        return self.role != "prefill"
