"""A worker: `python -m inflight.execution.parallel.worker PIPE`, an open descriptor.

A worker has a shard of the model and runs every plan that comes over PIPE on it, as the engine's process does on its
own shard, so that both meet in the same sums. It ignores signals, and ends at once when its pipe does.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from inflight.core.types.plan import StepResult
from inflight.cpus import ANYWHERE
from inflight.execution.backends.protocol import Backend
from inflight.execution.memory import memory_of, states_of
from inflight.execution.parallel import messages
from inflight.execution.parallel.ranks import Ranks
from inflight.execution.runner import InFlight, ModelRunner, step_failure
from inflight.models.gguf.gguf_model import gguf_at

Inbox = queue.SimpleQueue[messages.ToWorker]
Send = Callable[[messages.FromWorker], None]
Shortage = Callable[[], Exception | None]
_TICK = 0.001  # seconds between two polls of transfers in flight


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pipe = Connection(int(sys.argv[1]))
    setup: messages.Setup = pipe.recv()
    inbox = Inbox()
    threading.Thread(target=_listen, args=(pipe, inbox), daemon=True).start()

    def send(message: messages.FromWorker) -> None:
        pipe.send_bytes(messages.encode(message))

    try:
        work(setup, inbox, send)
    except Exception as error:
        sentence = str(error) if str(error) else type(error).__name__
        send(messages.Failed(sentence, isinstance(error, messages.PeerLost)))
    os._exit(1)  # at once: others may be waiting for this one


def work(setup: messages.Setup, inbox: Inbox, send: Send) -> None:
    """Compute until a step fails: then ranks are no longer at the same step, and none can go on."""
    model = setup.model
    assert isinstance(model.files, Path)
    model = replace(model, files=gguf_at(model.files) or model.files)
    send(messages.Joining())
    assert model.member is not None
    ranks = Ranks(model.member, model.device)
    model = replace(model, ranks=ranks)
    backend = model.open_backend(setup.dtype, setup.threads, ANYWHERE)
    assert isinstance(backend, Backend)
    decoder = model.decoder(backend, setup.max_positions, setup.max_tokens, setup.max_logit_rows, None)
    send(messages.Loaded(memory_of(backend).available))
    begin = inbox.get()
    assert isinstance(begin, messages.Begin)
    capacity, kinds = begin.capacity, states_of(model.held)
    kv_cache = backend.kv_cache(setup.kv_shape, capacity.num_blocks + 1, capacity.host_blocks)
    states = backend.state_cache(kinds, capacity.max_rows + 1, capacity.state_snapshots) if kinds else None
    runner = ModelRunner(decoder, backend, kv_cache, capacity, states)
    send(messages.Ready())
    compute(runner, backend.depth, inbox, send, ranks.shortage)


def compute(runner: ModelRunner, depth: int, inbox: Inbox, send: Send, shortage: Shortage) -> None:
    """Compute plans as they come, up to `depth` of them in flight, and transfers beside them. shortage() returns the
    lack of memory since the last call that a step went on with. Raises the fault of a step that failed otherwise."""
    flights = deque[tuple[InFlight, str | None]]()
    while True:
        ended = runner.poll()
        if ended:
            send(messages.Copied(ended))
        if flights and (len(flights) == depth or inbox.empty()):
            flight, short = flights.popleft()
            result = flight.result()
            if flight.fault is not None:
                raise flight.fault
            send(messages.Computed(result.step, token_ids(result), short))
            continue
        try:
            message = inbox.get(timeout=None if ended is None else _TICK)
        except queue.Empty:
            continue
        assert isinstance(message, messages.Step)
        flight, fault = runner.submit(message.plan), shortage()
        flights.append((flight, None if fault is None else step_failure(message.plan, fault)))


def token_ids(result: StepResult) -> tuple[int, ...]:
    """Return all tokens that a step has drawn."""
    return tuple(token for one in result.sampled for token in one.token_ids)


def _listen(pipe: Connection, inbox: Inbox) -> None:
    """Receive messages. The process ends with its pipe: no other process needs its results."""
    try:
        while True:
            inbox.put(messages.decode_to_worker(pipe.recv_bytes()))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
