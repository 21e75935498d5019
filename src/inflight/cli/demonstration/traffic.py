"""The demonstration's traffic: a chat's short questions and now and then a long prompt in the interactive lane, and
batch work that never ends in the batch lane; both by the load client of `inflight bench`.

Knows what is offered, and for how long; what comes of it, `inflight.bench` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from inflight.bench.client import send
from inflight.bench.client_types import BenchError, Target
from inflight.bench.offering import Offer
from inflight.bench.preparing import Prepared, RequestOptions, prepare
from inflight.bench.run import Measured, Runner, Warmup
from inflight.bench.served_model import look
from inflight.workload.arrivals import Constant, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Uniform

CHAT, LONG, BATCH = "chat", "long prompts", "batch work"
INTERACTIVE_CLASSES = (
    TrafficClass(name=CHAT, arrivals=Poisson(0.8), input=Uniform(20, 60), output=Uniform(40, 110), lane="interactive"),
    TrafficClass(
        name=LONG, arrivals=Constant(0.125), input=Uniform(520, 760), output=Uniform(30, 60), lane="interactive"
    ),
)
BATCH_CLASS = TrafficClass(name=BATCH, share=1.0, input=Uniform(90, 180), output=Uniform(120, 220), lane="batch")
BATCH_PLACES = 6  # batch requests that wait or run at any time
ROUND_S, ROUND_REQUESTS = 1800.0, 2000  # that one run of the load client is made for


class Traffic(threading.Thread):
    """One lane's, until `stop` is set. measured: its last round, once it has ended. fault: why there is none."""

    def __init__(self, url: str, offer: Offer, seed: int, stop: threading.Event):
        super().__init__(daemon=True)
        self._target, self._offer, self._seed, self._stop_asked = Target(url), offer, seed, stop
        self.measured: Measured | None = None
        self.fault: BenchError | None = None

    def run(self) -> None:
        try:
            runner = Runner(self._prepared(), send, Warmup(), self._seed, interrupt=self._stop_asked.is_set)
            while not self._stop_asked.is_set():
                self.measured = runner.run(self._offer.workload())
        except BenchError as error:
            self.fault = None if self._stop_asked.is_set() else error

    def _prepared(self) -> Prepared:
        served = look(self._target, None)
        self._offer = replace(self._offer, max_model_len=served.max_model_len)
        return prepare(self._target, served, self._offer.workload(), RequestOptions())


def offers() -> tuple[Offer, Offer]:
    """Interactive, in an open loop; batch, in a closed one."""
    return (
        Offer(classes=INTERACTIVE_CLASSES, duration_s=ROUND_S),
        Offer(classes=(BATCH_CLASS,), concurrency=BATCH_PLACES, requests=ROUND_REQUESTS),
    )


def begin(url: str, stop: threading.Event, make: Callable[..., Traffic] = Traffic) -> tuple[Traffic, ...]:
    """Both, started."""
    traffic = tuple(make(url, offer, seed, stop) for seed, offer in enumerate(offers()))
    for one in traffic:
        one.start()
    return traffic
