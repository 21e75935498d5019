"""How an engine exchanges keys and values with others. Knows numbers and addresses; opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["prefill", "decode", "both"]
Way = Literal["auto", "tcp", "shm", "nixl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVExchangeOptions:
    """role: whether blocks are handed over, taken over, or both. host, port: where peers connect, and which of them
    others are told; 0: any free port. secret_file: the peers' secret; None: it is in the environment. way: how blocks
    travel. timeout: seconds of a whole pull, from when it is asked for, what the peer has still to compute included.
    hold: seconds for which a computed prompt waits for whoever takes it."""

    role: Role
    host: str = "127.0.0.1"
    port: int = 0
    secret_file: Path | None = None
    way: Way = "auto"
    timeout: float = 30.0
    hold: float = 60.0
