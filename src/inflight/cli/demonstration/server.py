"""Run the demonstration's server: `inflight serve` in a process of its own, small enough that its limits show."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from inflight.bench.processes import on_interrupt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.settings import ServerSettings
from inflight.testing.paced import Pace

ROWS, STEP_TOKENS, BLOCKS = 8, 48, 112
PACE = Pace(step=0.025, token=0.0005)  # a step of 48 tokens takes 49 ms, one of 8 tokens 29 ms
# The batch lane fills whatever a step has left: by default it would also keep steps as short as they are without it.
LANES = {"batch": {"step_target": "off"}}
_PATIENCE_S = 10.0  # for the server to end


class DemoServer:
    """A server that starts when entered and ends when left, or when the process that started it ends.

    Attributes:
        code: Exit code of a server that ended by itself; None: it runs.
    """

    def __init__(self, port: int, paced: bool, record: Path | None):
        """Prepare it. paced: whether steps are slowed."""
        self._arguments = (port, paced, record)
        self.code: int | None = None

    def __enter__(self) -> DemoServer:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments))
        with on_interrupt(signal.SIG_IGN):  # Ctrl-C is for this process, which then ends the server
            self._process.start()
        theirs.close()
        return self

    def __exit__(self, *exception: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def wait(self, seconds: float) -> str | None:
        """Wait for the server to be ready or to end, and set `code` if it has ended. Return its address when it is
        ready."""
        try:
            return str(self._pipe.recv()) if self._pipe.poll(seconds) else None
        except (EOFError, OSError):
            self._process.join()
            self.code = self._process.exitcode or 0
            return None


def _serve(pipe: Connection, port: int, paced: bool, record: Path | None) -> None:
    os.setsid()  # a terminal's Ctrl-C is not for it
    from inflight.launch.one_model import LOCAL_ENGINE, EngineProgram, serve
    from inflight.server.tenants import load_tenants

    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    try:
        code = serve(
            ServerSettings(port=port, drain_timeout=2.0),
            EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=STEP_TOKENS, num_blocks=BLOCKS),
            SchedulingSettings(speculation="off", admission="auto", lanes=LANES),
            load_tenants((), None),
            record=record,
            verbose=False,
            started=time.monotonic(),
            log_format="text",
            log_level="warning",
            program=EngineProgram(module="inflight.cli.demonstration.engine") if paced else LOCAL_ENGINE,
            ready=pipe.send,
        )
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise
        print(f"inflight: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _end_with(pipe: Connection) -> None:
    """End the server when the other end of the pipe is closed, which sends nothing."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGTERM)
