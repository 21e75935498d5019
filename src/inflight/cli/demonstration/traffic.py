"""Offer the demonstration's traffic by the load client of `inflight bench`.

Interactive lane: short questions, and now and then a long prompt. Batch lane: work that never ends.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from inflight.bench.client import send
from inflight.bench.client_types import BenchError, Target
from inflight.bench.offering import Offer
from inflight.bench.preparing import RequestOptions, prepare
from inflight.bench.run import Measured, Runner, Warmup
from inflight.bench.served_model import look
from inflight.workload.arrivals import Constant, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Uniform

BATCH_CONCURRENCY = 6  # batch requests that wait or run at any time
_ROUND_S, _ROUND_REQUESTS = 1800.0, 2000  # of one run of the load client
_CHAT = TrafficClass(
    name="chat", arrivals=Poisson(0.8), input=Uniform(20, 60), output=Uniform(40, 110), lane="interactive"
)
_LONG = TrafficClass(
    name="long prompts", arrivals=Constant(0.125), input=Uniform(520, 760), output=Uniform(30, 60), lane="interactive"
)
_BATCH = TrafficClass(name="batch work", share=1.0, input=Uniform(90, 180), output=Uniform(120, 220), lane="batch")
_OFFERS = (
    Offer(classes=(_CHAT, _LONG), duration_s=_ROUND_S),
    Offer(classes=(_BATCH,), concurrency=BATCH_CONCURRENCY, requests=_ROUND_REQUESTS),
)


class Traffic(threading.Thread):
    """The traffic of one lane, until `stop` is set.

    Attributes:
        measured: The last run, once it has ended.
        fault: Why there is none.
    """

    def __init__(self, url: str, offer: Offer, seed: int, stop: threading.Event):
        super().__init__(daemon=True)
        self._target, self._offer, self._seed, self._asked_to_stop = Target(url), offer, seed, stop
        self.measured: Measured | None = None
        self.fault: BenchError | None = None

    def run(self) -> None:
        try:
            served = look(self._target, None)
            offer = replace(self._offer, max_model_len=served.max_model_len)
            prepared = prepare(self._target, served, offer.workload(), RequestOptions())
            runner = Runner(prepared, send, Warmup(), self._seed, interrupt=self._asked_to_stop.is_set)
            while not self._asked_to_stop.is_set():
                self.measured = runner.run(offer.workload())
        except BenchError as error:
            self.fault = None if self._asked_to_stop.is_set() else error


def begin(url: str, stop: threading.Event) -> tuple[Traffic, ...]:
    """Start the traffic of both lanes."""
    traffic = tuple(Traffic(url, offer, seed, stop) for seed, offer in enumerate(_OFFERS))
    for one in traffic:
        one.start()
    return traffic
