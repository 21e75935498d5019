"""Many streams for a long time: no error, flat memory, shares of service as configured, the same bits every time.

Two tenants with weights 1 and 2 under the policy `fair` keep as many streams open as were asked for, all of them from a
few prompts, greedy, so that every complete text can be compared with the first. Among them clients read slowly, go away
in the middle, or send bad requests; what the server takes is sampled beside it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.comparison import log_line, options, publish
from benchmarks.results import table
from benchmarks.served import Server
from benchmarks.streams import Stream, post, run, send
from benchmarks.workloads import lognormal, prompt
from inflight.metrics.definitions import percentiles

WEIGHTS = {"one": 1.0, "two": 2.0}
ROWS = 64
PROMPTS = 64
WARM = 0.2  # share of the time after which memory and service are counted
SAMPLE = 1.0  # seconds between samples of memory
BAD = (
    post("/v1/completions", {"prompt": "x", "temperature": 9}),
    post("/v1/completions", {"prompt": [2**30], "max_tokens": 4}),
    post("/v1/completions", {"prompt": "x", "model": "none such"}),
    post("/v1/chat/completions", {"messages": "x"}),
    b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"prompt"',
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A request that is sent again and again. number: of its prompt."""

    number: int
    tokens: int
    wire: bytes


@dataclass(slots=True)
class Seen:
    """Record what came of all streams. texts: the first answer to each prompt. tokens: of output by tenant, once
    warm."""

    complete: int = 0
    left: int = 0
    slow: int = 0
    bad: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    texts: dict[int, bytes] = field(default_factory=dict)
    tokens: Counter[str] = field(default_factory=Counter)
    ttfts: dict[str, list[float]] = field(default_factory=lambda: {tenant: [] for tenant in WEIGHTS})
    gaps: dict[str, list[float]] = field(default_factory=lambda: {tenant: [] for tenant in WEIGHTS})
    memory: list[tuple[float, float]] = field(default_factory=list)  # seconds since the start, MB
    all_tokens: int = 0


class Soak:
    def __init__(self, port: int, seconds: float, seed: int):
        self.seen = Seen()
        self._port = port
        self._seconds = seconds
        self._rng = random.Random(seed)
        self._began = 0.0
        self._kinds = {tenant: kinds(tenant) for tenant in WEIGHTS}

    async def run(self, streams: int, resident_mb: Callable[[], float]) -> Seen:
        self._began = time.perf_counter()
        tenants = list(WEIGHTS)
        clients = [self._client(tenants[number % 2]) for number in range(streams)]
        await asyncio.gather(self._watch(resident_mb), self._bad_client(), *clients)
        return self.seen

    @property
    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _watch(self, resident_mb: Callable[[], float]) -> None:
        while self._now < self._seconds:
            self.seen.memory.append((self._now, resident_mb()))
            await asyncio.sleep(SAMPLE)

    async def _bad_client(self) -> None:
        """Each mistake must be answered with a 4xx; the last one is no answerable request at all: the client leaves."""
        while self._now < self._seconds:
            wire = self._rng.choice(BAD)
            stream = Stream(wire)
            sending = asyncio.ensure_future(send(self._port, stream))
            await asyncio.wait([sending], timeout=5.0 if wire is not BAD[-1] else 0.2)
            if wire is BAD[-1]:
                stream.leave()
            await sending
            if wire is not BAD[-1] and not 400 <= stream.status < 500:
                self.seen.wrong[f"a bad request was answered with {stream.status}"] += 1
            self.seen.bad += 1
            await asyncio.sleep(0.05)

    async def _client(self, tenant: str) -> None:
        """One stream after the other, until the server is gone."""
        stream = None
        while self._now < self._seconds and (stream is None or stream.status):
            kind = self._rng.choice(self._kinds[tenant])
            chance = self._rng.random()
            leaves = self._rng.randrange(1, max(2, kind.tokens)) if chance < 0.05 else None
            pause = 0.02 if chance > 0.95 else 0.0
            stream = Stream(kind.wire, leave_after=leaves, pause=pause, keep=True)
            await send(self._port, stream)
            self._note(tenant, kind, stream, leaves is not None, pause > 0)

    def _note(self, tenant: str, kind: Kind, stream: Stream, leaves: bool, slow: bool) -> None:
        seen = self.seen
        seen.left += leaves
        seen.slow += slow
        if not leaves:
            self._judge(kind, stream)
        if WARM * self._seconds < self._now < self._seconds and stream.status == 200:
            seen.tokens[tenant] += kind.tokens if not leaves else stream.frames
            if stream.ttft is not None:
                seen.ttfts[tenant].append(stream.ttft)
            if not slow:
                seen.gaps[tenant] += stream.gaps
        if stream.status == 200:
            seen.all_tokens += kind.tokens if not leaves else stream.frames

    def _judge(self, kind: Kind, stream: Stream) -> None:
        seen = self.seen
        if not stream.complete:
            seen.wrong["a stream broke off" if stream.status == 200 else f"status {stream.status} (0: no answer)"] += 1
        elif b'data: {"error"' in stream.body:
            seen.wrong["an error within a stream"] += 1
        elif seen.texts.setdefault(kind.number, stream.text) != stream.text:
            seen.wrong["a text that differs from the first"] += 1
        else:
            seen.complete += 1


def kinds(tenant: str) -> list[Kind]:
    """The same prompts for both tenants."""
    rng = random.Random(4)
    found = []
    for number in range(PROMPTS):
        token_ids, tokens = prompt(rng, lognormal(rng, 40, 200, 300), 1000), lognormal(rng, 40, 160, 200)
        body = {"prompt": token_ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        found.append(Kind(number, tokens, post("/v1/completions", {**body, "user": tenant})))
    return found


def slope(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of a least-squares line and the half-width of its 95 % confidence interval, both per hour.

    Neighbouring samples resemble each other: the error's square grows by (1 + r)/(1 - r), r being the correlation of
    neighbouring residuals (the usual correction of first order).
    """
    if len(samples) < 10:
        return math.nan, math.nan
    times, values = [one[0] for one in samples], [one[1] for one in samples]
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((one - mean_t) ** 2 for one in times)
    rise = sum((t - mean_t) * (v - mean_v) for t, v in samples) / spread
    residuals = [v - mean_v - rise * (t - mean_t) for t, v in samples]
    squares = sum(one * one for one in residuals)
    if squares <= 0:
        return rise * 3600, 0.0
    alike = sum(a * b for a, b in pairwise(residuals)) / squares
    alike = min(max(alike, 0.0), 0.99)
    error = math.sqrt(squares / (len(samples) - 2) / spread * (1 + alike) / (1 - alike))
    return rise * 3600, 1.96 * error * 3600


def report(seen: Seen, seconds: float, streams: int, events: float, engine: float, client: float) -> str:
    warm = [one for one in seen.memory if one[0] > WARM * seconds]
    rise, error = slope(warm)
    share = seen.tokens["two"] / max(1, sum(seen.tokens.values()))
    asked = WEIGHTS["two"] / sum(WEIGHTS.values())
    wrong = ", ".join(f"{count} times {what}" for what, count in seen.wrong.items()) or "none"
    rows: list[list[object]] = [
        ["streams open at once", streams, "500"],
        ["seconds", f"{seconds:g}", "600"],
        ["streams that ended complete, with the text of the first", f"{seen.complete:,}", "all"],
        ["errors", wrong, "none"],
        ["left in the middle; read slowly; bad requests", f"{seen.left:,}; {seen.slow:,}; {seen.bad:,}", ""],
        ["output tokens/s", f"{seen.all_tokens / seconds:,.0f}", ""],
        ["share of the tenant with weight 2", f"{share:.1%}", f"{asked:.1%}"],
        ["resident memory, begin of the warm part to its end", f"{warm[0][1]:.1f} to {warm[-1][1]:.1f} MB", "flat"],
        ["its slope, with 95 % confidence", f"{rise:+.1f} ± {error:.1f} MB/h", "0 within it"],
        ["CPU of the event loop, the engine, the client", f"{events:.1f}, {engine:.1f}, {client:.1f} s", ""],
    ]
    times: list[list[object]] = []
    for tenant, weight in WEIGHTS.items():
        ttft, gaps = percentiles(seen.ttfts[tenant]), percentiles(seen.gaps[tenant])
        found = (ttft.p50, ttft.p99, gaps.p50, gaps.p99)
        times.append([f"{weight:g}", *("" if one is None else f"{one * 1e3:,.1f}" for one in found)])
    head = ["weight", "TTFT p50, ms", "TTFT p99, ms", "ITL p50, ms", "ITL p99, ms"]
    return table(["", "measured", "asked"], rows) + "\n\n" + table(head, times)


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.set_defaults(model="built-in")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0, help="default 30; the target is about 600")
    arguments = parser.parse_args()
    weights = [text for name, weight in WEIGHTS.items() for text in ("--tenant-weight", f"{name}={weight}")]
    limits = ["--max-num-seqs", str(ROWS), "--max-queued-requests", str(2 * arguments.streams)]
    with Server("--policy", "fair", *weights, *limits) as server:
        soak = Soak(server.port, arguments.seconds, seed=1)
        client = time.process_time()
        seen = run(soak.run(arguments.streams, server.resident_mb))
        client, cpu = time.process_time() - client, server.cpu()
        if server.process.poll() is not None:
            log_line(f"The server ended:\n{server.lines()}")
    body = report(seen, arguments.seconds, arguments.streams, cpu.events, cpu.engine, client)
    publish("soak", f"{arguments.streams} streams for {arguments.seconds:g} s", body, arguments.write)


if __name__ == "__main__":
    main()
