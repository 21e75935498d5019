"""The load client against a server whose truth is known: how exact its times are, and what one process sustains.

The stub server notes when it wrote each token, on the clock that the client reads. Stub and client have a core each,
and where that is allowed go before all else that runs there: what is measured is the client, not its neighbours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.comparison import log_line, options, publish, spread
from benchmarks.results import table
from benchmarks.stub_server import StubServer, body
from inflight.bench.client import send
from inflight.bench.client_types import RunResult, Target, Transcript
from inflight.metrics.definitions import quantile
from inflight.workload.workload import Entry, Workload

ASKED_MS = 1.0
REQUESTS_ASKED, TOKENS_ASKED = 1_000, 15_000
STREAM_TOKENS = 25
STEP = 1.2  # from one rate to the next
STUB_CORE, CLIENT_CORE = 0, 1


@dataclass(frozen=True, slots=True)
class Same:
    """Bodies that are all alike."""

    content: bytes

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        return self.content, ""

    def answered(self, conversation: Transcript, text: str, token_ids: tuple[int, ...]) -> Transcript:
        return conversation


@dataclass(frozen=True, slots=True)
class Errors:
    """p99 in ms of |measured - truth|. ttft: from the intended time to the first token's being written. added: from
    sending to first token, less what the stub took from reading the request: what client, network and system add."""

    ttft: float
    itl: float
    added: float


@dataclass(frozen=True, slots=True)
class Step:
    """One rate, in requests per second."""

    rate: float
    sent: RunResult


def load(stub: StubServer, rate: float, seconds: float, script: dict[str, object]) -> RunResult:
    entries = tuple(Entry(place / rate, 1, 1) for place in range(round(rate * seconds)))
    sent = send(Workload(entries, "constant"), Target(stub.url), Same(body(script)))
    wrong = next((one for one in sent.observations if one.outcome != "completed"), None)
    if wrong is not None:
        raise RuntimeError(f"The stub did not answer: {wrong.error or wrong.outcome}")
    return sent


def accuracy(stub: StubServer, seconds: float) -> Errors:
    """200 requests/s of 25 tokens, one in 10 ms."""
    stub.stamps()
    sent = load(stub, 200, seconds, {"tokens": STREAM_TOKENS, "first_s": 0.02, "gap_s": 0.01})
    log_line(f"  {_health(sent)}")
    stamps = stub.stamps()
    ttft, itl, added = [], [], []
    for one in sent.observations:
        truth = stamps[one.request_id]
        assert one.first_token is not None and one.sent is not None and one.ttft is not None
        ttft.append(abs(one.ttft - (truth.tokens[0] - sent.began - one.intended)))
        added.append(abs((one.first_token - one.sent) - (truth.tokens[0] - truth.received)))
        gaps = zip(truth.tokens, truth.tokens[1:], strict=False)
        itl += [abs(seen - (later - before)) for seen, (before, later) in zip(one.gaps, gaps, strict=True)]
    return Errors(*(1000 * quantile(sorted(errors), 0.99) for errors in (ttft, itl, added)))


def highest(stub: StubServer, script: dict[str, object], first: float, seconds: float) -> tuple[Step, Step]:
    """The highest rate before the client calls the run invalid, and the first that it calls so."""
    last: Step | None = None
    for rate in _rates(first):
        sent = load(stub, rate, seconds, script)
        stub.stamps()
        step = Step(rate, sent)
        log_line(f"  {rate:,.0f} requests/s: {_health(sent)}{'' if sent.health.valid else ' INVALID'}")
        if not sent.health.valid:
            return last or step, step
        last = step
    raise AssertionError("rates never end")


def _rates(first: float) -> Iterator[float]:
    rate = first
    while True:
        yield rate
        rate *= STEP


def _health(sent: RunResult) -> str:
    health = sent.health
    return (
        f"busy {health.busy:.0%}, lag p99 {1000 * health.lag_p99_s:.1f} ms "
        f"delay p99 {1000 * health.delay_p99_s:.1f} ms, own {1000 * health.own_p99_s:.1f} ms"
    )


def report(errors: Sequence[Errors], short: tuple[Step, Step], streams: tuple[Step, Step]) -> str:
    rows: list[list[object]] = []
    names = {
        "TTFT": [one.ttft for one in errors],
        "ITL": [one.itl for one in errors],
    }
    for name, values in names.items():
        rows.append([f"{name}, p99 of its error", spread(values, 2, " ms"), f"≤ {ASKED_MS:g} ms"])
    added = spread((one.added for one in errors), 2, " ms")
    rows.append(["sending to first token, p99 of what it takes longer than the stub took", added, ""])
    for name, (held, broke), tokens, asked in (
        ("requests/s of one token", short, 1, REQUESTS_ASKED),
        (f"tokens/s in streams of {STREAM_TOKENS}", streams, STREAM_TOKENS, TOKENS_ASKED),
    ):
        rows.append([f"{name}, one process", f"{held.rate * tokens:,.0f}", f"≥ {asked:,}"])
        rows.append(["the same, first invalid", f"{broke.rate * tokens:,.0f} offered", "marked invalid"])
    said = "\n".join(f"- {step.sent.health.faults[0]}" for _, step in (short, streams) if step.sent.health.faults)
    found = table(["what", "measured", "asked"], rows)
    return f"{found}\n\nWhat the client said of these:\n\n{said}"


def main() -> None:
    parser = options(__doc__, 3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of one measurement of accuracy (default 20)")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})  # the client's processes inherit both
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with StubServer(STUB_CORE) as stub:
        errors = []
        for number in range(arguments.repeats):
            log_line(f"accuracy, round {number + 1}")
            errors.append(accuracy(stub, arguments.seconds))
            log_line(f"  {errors[-1]}")
        log_line("requests of one token")
        short = highest(stub, {"tokens": 1}, 1000, 5)
        log_line(f"streams of {STREAM_TOKENS} tokens")
        streams = highest(stub, {"tokens": STREAM_TOKENS, "first_s": 0.02, "gap_s": 0.01}, 500, 5)
    publish("bench_client", "The load client", report(errors, short, streams), arguments.write)


if __name__ == "__main__":
    main()
