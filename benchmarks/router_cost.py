"""Measure what a router costs: the same requests to a server, and to vllm-router before it; or, with `--ray`, to a
server whose engine is a replica of Ray Serve's.

Both ways are gone in turn, with new prompts each time, and a ratio is taken within such a pair. There is one engine on
each way, so that nothing is gained by a router, and client, router and server share the cores. vLLM's router and Ray
are as they are published, and must be installed separately.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from benchmarks.comparison import log_line, publish, ratios, spread
from benchmarks.results import table
from benchmarks.served import Server, process_seconds, tree_seconds
from benchmarks.streams import Stream, post, run, send

POLICIES = ("round_robin", "cache_aware", "kv_aware")
INSTALLED = Path(__file__).parents[1] / ".foreign/vllm_router/bin/vllm-router"
RAYS_PYTHON = Path(__file__).parents[1] / ".foreign/ray/bin/python"
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://*:*"}
WORDS = (
    "a",
    "block",
    "of",
    "keys",
    "and",
    "values",
    "holds",
    "positions",
    "while",
    "its",
    "lane",
    "waits",
    "for",
    "rows",
)
PROMPT_WORDS = 96
SECONDS_TO_READY = 60


@dataclass(frozen=True, slots=True)
class Found:
    """One run. ttft: seconds, of each request. cpu: seconds of what is compared (`Way`)."""

    ttft: list[float]
    tokens: int
    seconds: float
    cpu: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def ms(self, percentile: int) -> float:
        """Return a percentile of the times to first token, in milliseconds."""
        return 1e3 * statistics.quantiles(self.ttft, n=100, method="inclusive")[percentile - 1]


class Router:
    """vllm-router before one server. Use it in `with`."""

    def __init__(self, program: Path, policy: str, server: Server):
        self.port, metrics_port = _free_port(), _free_port()
        worker = f"http://127.0.0.1:{server.port}"
        command = [str(program), "--host", "127.0.0.1", "--port", str(self.port), "--policy", policy]
        command += ["--worker-urls", worker, "--worker-startup-check-interval", "1"]
        command += ["--prometheus-port", str(metrics_port), "--log-level", "warning"]
        if policy == "kv_aware":
            found = re.search(r"KV events: published at tcp://\S+?:(\d+)", server.lines())
            assert found is not None, "the server publishes them"
            command += ["--kv-event-model", "built-in", "--kv-event-source", f"{worker}=tcp://127.0.0.1:{found[1]}"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Router:
        end = time.monotonic() + SECONDS_TO_READY
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self._process.kill()
                raise RuntimeError("vllm-router did not begin to serve; run it by hand to see why.")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def cpu(self) -> float:
        return process_seconds(self._process.pid)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readiness", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def requests_of(rng: random.Random, count: int, tokens: int) -> list[bytes]:
    fixed = {"model": "built-in", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    prompts = (" ".join(rng.choices(WORDS, k=PROMPT_WORDS)) for _ in range(count))
    return [post("/v1/completions", {"prompt": prompt, **fixed}) for prompt in prompts]


async def ask(port: int, requests: Sequence[bytes], clients: int) -> list[Stream]:
    """Each client sends its next request when it has its answer."""
    waiting: Iterator[bytes] = iter(requests)
    answered: list[Stream] = []

    async def client() -> None:
        for request in waiting:
            answered.append(await send(port, Stream(request)))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answered


@dataclass(frozen=True, slots=True)
class Way:
    """port: where it begins. cpu: seconds so far, of what this way has and the other one has not, or has otherwise."""

    port: int
    cpu: Callable[[], float]


def measure(way: Way, requests: Sequence[bytes], clients: int, tokens: int) -> Found:
    cpu, began = way.cpu(), time.perf_counter()
    streams = run(ask(way.port, requests, clients))
    seconds = time.perf_counter() - began
    firsts = [one.ttft for one in streams if one.complete and one.ttft is not None]
    if len(firsts) < len(requests):
        raise RuntimeError("A stream broke off, and what failed must not count as fast.")
    return Found(firsts, len(requests) * tokens, seconds, way.cpu() - cpu)


def request_count(clients: int) -> int:
    """Return how many requests a run has."""
    return max(60, 12 * clients)


def pairs_of(direct: Way, routed: Way, clients: int, repeats: int, tokens: int) -> list[tuple[Found, Found]]:
    """Which goes first changes from pair to pair; the first pair warms up."""
    count, pairs = request_count(clients), []
    for repeat in range(-1, repeats):
        rng, found = random.Random(1000 * clients + repeat), {}
        for way in (direct, routed)[:: 1 if repeat % 2 else -1]:
            found[way.port] = measure(way, requests_of(rng, count, tokens), clients, tokens)
        pairs.append((found[direct.port], found[routed.port]))
        log_line(f"{clients} clients: {pairs[-1][0].ms(50):.1f} and {pairs[-1][1].ms(50):.1f} ms to the first token")
    return pairs[1:]


HEAD = ["TTFT p50, direct", "more by the router", "routed / direct"]
HEAD += ["TTFT p99, direct", "routed / direct", "tokens/s, direct", "routed / direct", "router's CPU"]


def row(pairs: Sequence[tuple[Found, Found]]) -> list[object]:
    direct, routed = [one for one, _ in pairs], [two for _, two in pairs]
    medians = [one.ms(50) for one in direct], [two.ms(50) for two in routed]
    ends = [one.ms(99) for one in direct], [two.ms(99) for two in routed]
    rates = [one.tokens_per_s for one in direct], [two.tokens_per_s for two in routed]
    return [
        spread(medians[0], 1, " ms"),
        spread((after - before for before, after in zip(*medians, strict=True)), 1, " ms"),
        spread(ratios(medians[1], medians[0])),
        spread(ends[0], 1, " ms"),
        spread(ratios(ends[1], ends[0])),
        spread(rates[0], 0),
        spread(ratios(rates[1], rates[0]), 3),
        spread(((two.cpu - one.cpu) / two.tokens * 1e6 for one, two in pairs), 0, " µs"),
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def vllm_router(asked: argparse.Namespace) -> None:
    rows = []
    with Server("--speculation", "off", "--metrics-names", "vllm", "--kv-events-config", json.dumps(EVENTS)) as server:
        for policy in asked.policies:
            with Router(asked.router, policy, server) as router:
                ways = Way(server.port, lambda: 0.0), Way(router.port, router.cpu)
                for clients in asked.clients:
                    pairs = pairs_of(*ways, clients, asked.repeats, asked.tokens)
                    rows.append([clients, f"`{policy}`", *row(pairs)])
    intro = (
        f"vllm-router 0.1.17 before one server of the built-in model; {_traffic(asked)} With `cache_aware` and "
        "`kv_aware` the router has each prompt rendered by the server before it sends it there. The router's CPU is "
        "per token of an answer. Client, router and server share cores."
    )
    publish(
        "router_cost", "What a router costs", f"{intro}\n\n{table(['clients', 'policy', *HEAD], rows)}", asked.write
    )


def ray(asked: argparse.Namespace) -> None:
    threads = ("--speculation", "off", "--threads", str(len(os.sched_getaffinity(0))))
    rows, load = [], os.getloadavg()[0]
    with Server(*threads) as server, Server("--replicas", "1", *threads, python=str(asked.ray)) as replicated:
        direct, routed = (Way(one.port, partial(tree_seconds, one.process.pid)) for one in (server, replicated))
        for clients in asked.clients:
            rows.append([clients, *row(pairs_of(direct, routed, clients, asked.repeats, asked.tokens))])
    intro = (
        f"`inflight serve --replicas 1` under Ray 2.60 beside `inflight serve`, the built-in model; {_traffic(asked)} "
        "The router is all that lies between HTTP and the engine there: Ray's handle, our request router, and the way "
        "to the replica's process and back. Its CPU is what all processes of a server take more than the plain one's, "
        "Ray's own among them, per token of an answer. Client and servers share cores; the machine's "
        f"load average was {load:.0f} when the run began."
    )
    publish(
        "router_cost",
        "What Ray Serve costs",
        f"{intro}\n\n{table(['clients', *HEAD], rows)}",
        asked.write,
        "ray",
    )


def _traffic(asked: argparse.Namespace) -> str:
    counts = " and ".join(str(request_count(clients)) for clients in asked.clients)
    return (
        f"{PROMPT_WORDS} words of prompt, {asked.tokens} tokens of answer, streamed, a connection each; {counts} "
        f"requests a run. Medians of {asked.repeats} pairs (least to greatest)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", type=Path, default=INSTALLED, help="the program (default: where tests install it)")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), help="of the router")
    parser.add_argument(
        "--ray",
        type=Path,
        nargs="?",
        const=RAYS_PYTHON,
        help="Ray Serve in place of vllm-router; the interpreter that has it and inflight (default: the tests')",
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16], help="that ask at once (default 1 and 16)")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer (default 32)")
    parser.add_argument("--repeats", type=int, default=7, help="pairs (default 7)")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    asked = parser.parse_args()
    program = asked.ray or asked.router
    if not program.exists():
        parser.error(f"there is no {program}; install what it is, and give its path.")
    ray(asked) if asked.ray else vllm_router(asked)


if __name__ == "__main__":
    main()
