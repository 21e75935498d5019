"""The demonstration's server: `inflight serve` in a process of its own, small enough that its limits are seen.

Knows the settings of that server, its pace, and the pipe by which it tells when it is ready and what the narrator says.
It ends when it is told to, and when whoever started it is gone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from inflight.bench.processes import on_interrupt
from inflight.cli.demonstration.narrator import Kind, Sentence
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.server.settings import ServerSettings
from inflight.testing.paced import Pace

ROWS, STEP_TOKENS, BLOCKS = 8, 48, 112
PIPE, PACE_OF_STEPS = "INFLIGHT_DEMO_PIPE", "INFLIGHT_DEMO_PACE"  # for the engine's process, in the environment
PACE = Pace(step=0.025, token=0.0005)  # a step of 48 tokens takes 49 ms, one of 8 tokens 29 ms
# The batch lane fills whatever a step has left: by default it would also keep steps as short as they are without it.
LANES = {"batch": {"step_target": "off"}}
_PATIENCE_S = 10.0  # for a server that was told to stop


@dataclass(frozen=True, slots=True)
class Ready:
    url: str


@dataclass(frozen=True, slots=True)
class Counted:
    """How often each was seen until now."""

    seen: Mapping[Kind, int]


Message = Ready | Sentence | Counted


class DemoServer:
    """Started when entered, ended when left. paced: steps take a while, so that they can be followed."""

    def __init__(self, port: int, paced: bool, record: Path | None):
        self._arguments = (port, paced, record)
        self.code: int | None = None  # of a server that ended by itself

    def __enter__(self) -> DemoServer:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._arguments))
        with on_interrupt(signal.SIG_IGN):  # Ctrl-C is for whoever started it, who then tells it to end
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

    def messages(self, seconds: float) -> Iterator[Message]:
        """What it has told; waits so long for the first. `code` is set when it has ended."""
        try:
            while self._pipe.poll(seconds):
                yield self._pipe.recv()
                seconds = 0.0
        except (EOFError, OSError):
            self._process.join()
            self.code = self._process.exitcode or 0


def _serve(pipe: Connection, port: int, paced: bool, record: Path | None) -> None:
    """Run the server. Its engine's process (`engine`) writes to the pipe, too."""
    os.setsid()  # a terminal's Ctrl-C is not for it
    from inflight.launch.one_model import serve
    from inflight.server.tenants import load_tenants

    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    os.environ[PIPE], os.environ[PACE_OF_STEPS] = str(pipe.fileno()), "paced" if paced else ""
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
            engine="inflight.cli.demonstration.engine",
            inherited=(pipe.fileno(),),
            ready=lambda url: pipe.send(Ready(url)),
        )
    except ValueError as error:
        if not type(error).__module__.startswith("inflight."):
            raise
        print(f"inflight: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _end_with(pipe: Connection) -> None:
    """Whoever started it says nothing; when they are gone, the pipe ends."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGTERM)
