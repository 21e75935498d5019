"""The folder of blocks: a restarted server's first token behind a long shared prefix, and what running streams notice.

Part one starts `inflight serve` with a folder, asks one question behind a prefix of 4,096 tokens, ends the server,
starts it again and asks another question behind the same prefix. Each time a short question goes before, so that memory
is touched. The folder is part of a fresh start in each repeat; the system's file cache is as it is.

Part two has streams decode in one engine while others come whose prefixes lie in the folder, or are to be kept there;
and the same streams in an engine without a folder, for which the same prefixes lie in the prefix cache, so that beside
the streams as much is computed. Both engines stand in one process and take turns, round by round; the figure is of the
gaps of all rounds, since the p99 of one rests on six of them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.comparison import log_line, publish, ratios, spread
from benchmarks.results import table
from benchmarks.served import Server
from benchmarks.shapes import QWEN25_05B, TINY, write_config
from benchmarks.workloads import prompt
from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

PREFIX, QUESTION, ANSWER = 4096, 32, 8  # tokens
STREAMS, STREAM_TOKENS, VISITORS, VISITOR_PREFIX = 4, 160, 6, 1024
GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Asked:
    """seconds: to the first token. text: of all of them."""

    seconds: float
    text: str


def ask(port: int, token_ids: tuple[int, ...]) -> Asked:
    body = {"prompt": token_ids, "max_tokens": ANSWER, "stream": True, **GREEDY}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    began, first, text = time.perf_counter(), 0.0, ""
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    for line in answer:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - began
            text += "".join(one["text"] for one in json.loads(line[6:])["choices"])
    connection.close()
    return Asked(first, text)


def settled(folder: Path) -> int:
    """Files, once there are no more to come."""
    count = -1
    while (found := sum(1 for _ in folder.rglob("*.kv"))) != count:
        count = found
        time.sleep(1.0)
    return count


def restarted(model: str, shape: dict[str, object], seed: int) -> tuple[float, float, float]:
    """Seconds to the first token: cold, and after a restart; and megabytes in the folder."""
    rng, vocabulary = random.Random(seed), int(str(shape["vocab_size"]))
    prefix = prompt(rng, PREFIX, vocabulary)
    warm, first, second = (prompt(rng, QUESTION, vocabulary) for _ in range(3))
    with tempfile.TemporaryDirectory() as kept:
        options = ("--model", model, "--load-format", "dummy", "--kv-cache-dir", kept, "--max-model-len", "8192")
        with Server(*options, "--num-blocks", "1024") as server:
            ask(server.port, warm)
            cold = ask(server.port, prefix + first)
            settled(Path(kept))
        held = sum(one.stat().st_size for one in Path(kept).rglob("*.kv")) / 1e6
        with Server(*options, "--num-blocks", "1024") as server:
            ask(server.port, warm)
            again = ask(server.port, prefix + second)
            same = ask(server.port, prefix + first)
        if same.text != cold.text:
            raise RuntimeError("the restarted server says something else")
    log_line(f"TTFT {cold.seconds:.3f} s cold, {again.seconds:.3f} s after a restart; {held:.0f} MB in the folder")
    return cold.seconds, again.seconds, held


def loaded(model: str, kept: str | None) -> Engine:
    settings = EngineSettings(
        model=model, load_format="dummy", num_blocks=2048, max_model_len=4096, kv_cache_dir=kept, max_num_seqs=16
    )
    return build_engine(settings, SchedulingSettings(speculation="off"))


def request(name: str, token_ids: tuple[int, ...], tokens: int) -> Request:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=token_ids, params=params)


def gaps(engine: Engine, streams: list[Request], visitors: list[Request]) -> list[float]:
    """Between the tokens of the streams, while visitors come evenly over their time."""
    loop, times, delivered = engine.loop, {one.request_id: [0.0] for one in streams}, 0
    for one in streams:
        loop.add(one)
    waiting = list(visitors)
    while not loop.idle:
        outcome = loop.advance()
        if isinstance(outcome, WaitUntil):
            continue
        for event in outcome:
            if isinstance(event, TokensEvent) and event.request_id in times:
                times[event.request_id].append(loop.clock.now())
                delivered += 1
        if waiting and delivered >= (len(visitors) - len(waiting) + 1) * len(streams) * STREAM_TOKENS // (
            len(visitors) + 2
        ):
            loop.add(waiting.pop(0))
    # From the second token on: until all streams decode, their prompts are computed.
    return [after - before for one in times.values() for before, after in pairwise(one[3:])]


@dataclass(frozen=True, slots=True)
class Noticed:
    """Gaps of the streams in seconds, of one round, by what went on beside them."""

    folder: list[float]
    none: list[float]


def beside(engine: Engine, rng: random.Random, vocabulary: int, prefixes: list[tuple[int, ...]]) -> list[float]:
    """Gaps, while visitors come behind these prefixes."""
    streams = [request(f"stream-{at}", prompt(rng, 64, vocabulary), STREAM_TOKENS) for at in range(STREAMS)]
    visitors = [request(f"visitor-{at}", prefix + prompt(rng, 16, vocabulary), 2) for at, prefix in enumerate(prefixes)]
    return gaps(engine, streams, visitors)


def filled(engine: Engine, prefixes: list[tuple[int, ...]]) -> None:
    for at, prefix in enumerate(prefixes):
        engine.loop.add(request(f"fill-{at}", prefix, 1))
    engine.loop.run()


def noticed(model: str, shape: dict[str, object], rounds: int) -> dict[str, list[Noticed]]:
    """By what goes on beside the streams, of each round; who is first alternates."""
    rng, vocabulary = random.Random(100), int(str(shape["vocab_size"]))
    read, written = (
        [[prompt(rng, VISITOR_PREFIX, vocabulary) for _ in range(VISITORS)] for _ in range(rounds)] for _ in range(2)
    )
    found: dict[str, list[Noticed]] = {"reads": [], "writes": []}
    with tempfile.TemporaryDirectory() as kept:
        writer = loaded(model, kept)
        for prefixes in read:
            filled(writer, prefixes)
        writer.loop.close()
        with_folder, without = loaded(model, kept), loaded(model, None)
        for number in range(rounds):
            filled(without, read[number])  # what the one reads, the other has
            for what, texts in (("reads", read[number]), ("writes", written[number])):
                folder_first = number % 2 == 0
                engines = (with_folder, without) if folder_first else (without, with_folder)
                pair = [beside(one, random.Random(number), vocabulary, texts) for one in engines]
                found[what].append(Noticed(*(pair if folder_first else pair[::-1])))
                of = found[what][-1]
                log_line(f"{what}: {p99(of.folder) * 1e3:.1f} ms with a folder, {p99(of.none) * 1e3:.1f} ms without")
        tiers = with_folder.loop.stats().kv.tiers
        assert tiers is not None
        log_line(f"{tiers.brought} blocks were brought, {tiers.stored} stored")
        for engine in (with_folder, without):
            engine.loop.close()
    return found


def p99(gaps: list[float]) -> float:
    return statistics.quantiles(gaps, n=100)[98]


def _compared(rounds: list[Noticed]) -> list[str]:
    """p99 without a folder and with it, their ratio, and that of the means."""
    folder = [gap for one in rounds for gap in one.folder]
    none = [gap for one in rounds for gap in one.none]
    each = sorted(p99(one.folder) / p99(one.none) for one in rounds)
    return [
        f"{p99(none) * 1e3:.1f}",
        f"{p99(folder) * 1e3:.1f}",
        f"{p99(folder) / p99(none):.3f} ({each[0]:.3f} to {each[-1]:.3f})",
        f"{statistics.fmean(folder) / statistics.fmean(none):.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="restarts (default 3)")
    parser.add_argument("--rounds", type=int, default=8, help="of streams beside reading and writing (default 8)")
    parser.add_argument("--model", choices=["qwen", "tiny"], default="qwen")
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md")
    arguments = parser.parse_args()
    shape = QWEN25_05B if arguments.model == "qwen" else TINY
    with tempfile.TemporaryDirectory() as folder:
        model = write_config(Path(folder), shape)
        starts = [restarted(model, shape, seed) for seed in range(arguments.repeats)]
        results = noticed(model, shape, arguments.rounds)
    cold, again, held = ([one[at] for one in starts] for at in range(3))
    body = table(
        ["a question behind 4,096 tokens", "TTFT"],
        [
            ["cold", spread(cold, 3, " s")],
            [f"after a restart, {held[0]:.0f} MB in the folder", spread(again, 3, " s")],
            ["ratio", spread(ratios(cold, again), 1, " ×")],
        ],
    )
    rows = [[what, *_compared(of)] for what, of in results.items()]
    head = [f"ITL p99 of {STREAMS} streams while it", "without a folder, ms", "with it, ms", "ratio", "of the means"]
    body += f"\n\nOf the gaps of {arguments.rounds} rounds together; in brackets the ratios of single rounds.\n\n"
    body += table(head, rows)
    publish("kv_tiers", "Keys and values in a folder", body, arguments.write)


if __name__ == "__main__":
    main()
