"""The server at three times of its capacity: do accepted requests keep their target, and do refused ones hear it soon?

Three parts on one server with the settings it has by itself. A closed loop finds how many requests a second it serves;
Poisson arrivals at that rate, each with a target for its first token, give the goodput at capacity; the same at three
times the rate is the overload. A request's clock runs from its intended send time, on the client's side of the socket.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from benchmarks.comparison import log_line, options, publish
from benchmarks.results import table
from benchmarks.served import CPU, Server
from benchmarks.streams import Stream, post, run, send
from benchmarks.workloads import lognormal, poisson, prompt
from inflight.metrics.definitions import percentiles

OVER = 3.0
LOOPS = 128  # clients of the closed loop: more than there are rows
ASKED = {"kept": 0.95, "goodput": 0.85, "heard": 0.05}


@dataclass(frozen=True, slots=True)
class Found:
    """One part. rate: requests per second. target: seconds. cpu, client: seconds of CPU. late: by which the
    client itself was late, p99 in seconds."""

    rate: float
    seconds: float
    streams: list[Stream]
    target: float
    cpu: CPU
    client: float
    late: float

    @property
    def ttfts(self) -> list[float]:
        """Return the times to first token of accepted requests, in seconds."""
        return [one.ttft for one in self.streams if one.ttft is not None]

    @property
    def kept(self) -> float:
        """Share of the accepted requests that had their first token in time."""
        return sum(one <= self.target for one in self.ttfts) / max(1, self.accepted)

    @property
    def accepted(self) -> int:
        return sum(one.status == 200 for one in self.streams)

    @property
    def goodput(self) -> float:
        """Requests per second of the offered window that kept their target."""
        return sum(one <= self.target for one in self.ttfts) / self.seconds

    @property
    def refusals(self) -> list[float]:
        """Seconds until a refused request heard so."""
        return [one.answered - one.sent for one in self.streams if one.status == 429]

    @property
    def others(self) -> Counter[int]:
        """Answers that are neither an accepted stream to its end nor a refusal, by status."""
        return Counter(one.status for one in self.streams if one.status != 429 and not one.complete)


def bodies(seed: int, ttft_ms: float | None) -> Iterator[bytes]:
    """Prompts p50 40, p99 200; outputs p50 60, p99 200, of which the server knows no more than max_tokens."""
    rng = random.Random(seed)
    for _ in count():
        body = {
            "prompt": prompt(rng, lognormal(rng, 40, 200, 300), 1000),
            "max_tokens": 200,
            "output_tokens": lognormal(rng, 60, 200, 200),
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        yield post("/v1/completions", body if ttft_ms is None else {**body, "slo": {"ttft_ms": ttft_ms}})


async def closed_loop(port: int, seconds: float, seed: int) -> float:
    """Requests per second while there are always more than can run; the first half warms up."""
    wires = bodies(seed, None)
    began = time.perf_counter()
    ends: list[float] = []

    async def client() -> None:
        while time.perf_counter() - began < seconds:
            stream = await send(port, Stream(next(wires)))
            if not stream.complete:
                raise RuntimeError(f"The closed loop had the status {stream.status}.")
            ends.append(stream.ended - began)

    await asyncio.gather(*(client() for _ in range(LOOPS)))
    return sum(seconds / 2 < one <= seconds for one in ends) / (seconds / 2)


async def open_loop(port: int, rate: float, seconds: float, seed: int, ttft_ms: float) -> tuple[list[Stream], float]:
    """Poisson arrivals; all streams when the last has ended, and by how much the client was late (p99, seconds)."""
    times = poisson(random.Random(seed), rate)
    offered = [(due, wire) for due, wire in zip(_until(times, seconds), bodies(seed + 1, ttft_ms), strict=False)]
    began = time.perf_counter() + 0.1
    late: list[float] = []
    sent: list[asyncio.Task[Stream]] = []
    for due, wire in offered:
        pause = began + due - time.perf_counter()
        if pause > 0:
            await asyncio.sleep(pause)
        late.append(time.perf_counter() - began - due)
        sent.append(asyncio.ensure_future(send(port, Stream(wire), began + due)))
    return list(await asyncio.gather(*sent)), percentiles(late).p99 or 0.0


def _until(times: Iterator[float], seconds: float) -> Iterator[float]:
    for one in times:
        if one >= seconds:
            return
        yield one


def measured(server: Server, rate: float, seconds: float, seed: int, ttft_ms: float) -> Found:
    cpu, client = server.cpu(), time.process_time()
    streams, late = run(open_loop(server.port, rate, seconds, seed, ttft_ms))
    client = time.process_time() - client
    return Found(rate, seconds, streams, ttft_ms / 1e3, server.cpu() - cpu, client, late)


HEAD = ["", "rate/s", "accepted", "refused", "kept the target", "goodput/s", "TTFT p50, p95, p99, ms"]
HEAD += ["429 after p50, p99, max, ms", "client late p99, ms", "CPU s: event loop, engine, client", "other answers"]


def line(name: str, found: Found) -> list[object]:
    ttft, heard = percentiles(found.ttfts), percentiles(found.refusals)

    def ms(*values: float | None) -> str:
        return ", ".join("-" if one is None else f"{one * 1e3:,.1f}" for one in values)

    return [
        name,
        f"{found.rate:.1f}",
        f"{found.accepted:,}",
        f"{len(found.refusals):,}",
        f"{found.kept:.1%}",
        f"{found.goodput:.1f}",
        ms(ttft.p50, ttft.p95, ttft.p99),
        ms(heard.p50, heard.p99, max(found.refusals, default=None)),
        f"{found.late * 1e3:.1f}",
        f"{found.cpu.events:.1f}, {found.cpu.engine:.1f}, {found.client:.1f}",
        ", ".join(f"{number} × {status}" for status, number in found.others.items()) or "none",
    ]


def report(capacity: float, level: Found, over: Found) -> str:
    heard = percentiles(over.refusals)
    rows: list[list[object]] = [
        ["accepted requests that kept their target", f"{over.kept:.1%}", f"≥ {ASKED['kept']:.0%}"],
        ["goodput over that at capacity", f"{over.goodput / level.goodput:.1%}", f"≥ {ASKED['goodput']:.0%}"],
        [
            "p99 until a refused request hears so",
            f"{(heard.p99 or 0) * 1e3:.1f} ms",
            f"≤ {ASKED['heard'] * 1e3:.0f} ms",
        ],
    ]
    intro = (
        f"The built-in model; a closed loop of {LOOPS} clients is served {capacity:.1f} requests/s. Target: the first "
        f"token within {level.target * 1e3:g} ms."
    )
    parts = table(HEAD, [line("at capacity", level), line(f"{OVER:g} times", over)])
    return "\n\n".join([intro, table(["at 3 times of capacity", "measured", "asked"], rows), parts])


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.set_defaults(model="built-in")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each open loop; the target is about 300")
    parser.add_argument("--ttft-ms", type=float, default=500.0)
    arguments = parser.parse_args()
    with Server() as server:
        capacity = run(closed_loop(server.port, max(6.0, arguments.seconds / 5), seed=1))
        log_line(f"Capacity: {capacity:.1f} requests/s")
        level = measured(server, capacity, arguments.seconds, 2, arguments.ttft_ms)
        log_line(" | ".join(str(cell) for cell in line("at capacity", level)))
        over = measured(server, OVER * capacity, arguments.seconds, 3, arguments.ttft_ms)
    publish("serve_overload", "The server at 3 times of capacity", report(capacity, level, over), arguments.write)


if __name__ == "__main__":
    main()
