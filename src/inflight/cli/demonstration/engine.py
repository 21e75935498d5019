"""The engine's process of the demonstration: its steps take their time, and a narrator tells what they do."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from multiprocessing.connection import Connection

from inflight.cli.demonstration.narrator import KINDS, Narrator, Sentence
from inflight.cli.demonstration.server import PACE, PACE_OF_STEPS, PIPE, Counted, Message
from inflight.config.setting import Resolved
from inflight.core.types.plan import Executor
from inflight.launch import engine_process
from inflight.testing.paced import PacedExecutor


def main() -> int:
    pipe, lock = Connection(int(os.environ[PIPE]), readable=False), threading.Lock()

    def tell(message: Message) -> None:
        with lock, contextlib.suppress(OSError):
            pipe.send(message)

    def say(sentence: Sentence | None) -> None:
        if sentence is not None:
            tell(sentence)
        tell(Counted({kind: narrator.seen[kind] for kind in KINDS}))

    narrator = Narrator(say)
    control = socket.socket(fileno=int(sys.argv[1]))
    return engine_process.main(control, _paced if os.environ[PACE_OF_STEPS] else None, (narrator,))


def _paced(executor: Executor, device: Resolved) -> Executor:
    return PacedExecutor(executor, PACE)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries may still be at work, and there is nothing left to do
