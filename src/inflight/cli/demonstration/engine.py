"""Run the demonstration's engine: steps last at least as long as `server.PACE` says, so that eyes can follow."""

from __future__ import annotations

import os
import socket
import sys

from inflight.cli.demonstration.server import PACE
from inflight.config.setting import Resolved
from inflight.core.types.executor import Executor
from inflight.launch import engine_process
from inflight.testing.paced import PacedExecutor


def _paced(executor: Executor, device: Resolved) -> Executor:
    return PacedExecutor(executor, PACE)


if __name__ == "__main__":
    code = engine_process.main(socket.socket(fileno=int(sys.argv[1])), _paced)
    sys.stderr.flush()
    os._exit(code)  # libraries' threads may still be at work, and nothing is left to do
