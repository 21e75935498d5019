"""Measure what HTTP costs: the same prompts through `LLM.generate` and through a server, over one streaming connection
each.

Both sides run in turn, each in a process of its own, and a ratio is taken within a repeat. The client shares the cores
with the server; its own CPU is separate from that of the server's event loop (all of HTTP) and of its engine.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line, options, publish, ratios, spread
from benchmarks.results import table
from benchmarks.served import CPU, Server
from benchmarks.shapes import QWEN25_05B, write_config
from benchmarks.streams import post, run, send_all
from benchmarks.workloads import prompt
from inflight.build import BUILT_IN

ASKED = 0.95
PROMPT_TOKENS = 128
_OFFLINE = """
import json, sys, time
from inflight.api import LLM, SamplingParams
llm = LLM(**json.loads(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    work = json.loads(line)
    params = SamplingParams(temperature=0, max_tokens=work["tokens"], ignore_eos=True)
    cpu, began = time.process_time(), time.perf_counter()
    llm.generate(work["prompts"], params)
    print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Found:
    """One run. seconds: wall. cpu: of the server (or of the process that generates). client: CPU seconds."""

    tokens: int
    seconds: float
    cpu: CPU
    client: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Offline:
    """`LLM.generate` in a process of its own."""

    def __init__(self, settings: dict[str, object]):
        command = [sys.executable, "-c", _OFFLINE, json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Found:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        seconds, cpu = json.loads(self._read())
        return Found(len(prompts) * tokens, seconds, CPU(0.0, cpu))

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("LLM.generate ended by itself; its error stands above.")
        return line


def through_http(server: Server, prompts: Sequence[Sequence[int]], tokens: int) -> Found:
    fixed = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    requests = [post("/v1/completions", {"prompt": one, **fixed}) for one in prompts]
    cpu, client, began = server.cpu(), time.process_time(), time.perf_counter()
    streams = run(send_all(server.port, requests))
    seconds = max(one.ended for one in streams) - began
    client = time.process_time() - client
    if not all(one.complete for one in streams):
        raise RuntimeError(f"A stream broke off:\n{server.lines()}")  # what failed must not count as fast
    return Found(len(prompts) * tokens, seconds, server.cpu() - cpu, client)


def model_folder(folder: Path) -> str:
    """The Qwen2.5-0.5B-shaped dummy model with a tokenizer of as many tokens, so that every token becomes text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    size = int(str(QWEN25_05B["vocab_size"]))
    vocabulary |= {f"Ġw{number:x}": number for number in range(len(alphabet), size)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = write_config(folder, QWEN25_05B)
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copy(BUILT_IN / "tokenizer_config.json", folder)
    return path


def compare(model: str | None, streams: Sequence[int], tokens: int, repeats: int, api_processes: int) -> str:
    """model: a folder of random weights, or None for the built-in one. api_processes: of the server."""
    settings: dict[str, object] = {"num_blocks": 12_000, "max_num_seqs": 512, "max_model_len": 512}
    if model is not None:
        settings = {"load_format": "dummy", "num_blocks": 1024, "max_num_seqs": 32, "max_model_len": 512}
    settings["speculation"] = "off"  # tokens that come together are sent together, and that is not what HTTP costs
    given = [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    offline = Offline({"model": model, **settings})
    vocabulary = 4096 if model is None else int(str(QWEN25_05B["vocab_size"]))
    rows: list[list[object]] = []
    with Server(*([model] if model else []), *given, "--api-processes", str(api_processes)) as server:
        for number in streams:
            pairs = []
            for repeat in range(-1, repeats):  # the first warms up
                rng = random.Random(1000 * number + repeat)
                prompts = [prompt(rng, PROMPT_TOKENS, min(vocabulary, 1000)) for _ in range(number)]
                pairs.append((offline.generate(prompts, tokens), through_http(server, prompts, tokens)))
                log_line(
                    f"{number} streams: {pairs[-1][0].tokens_per_s:,.0f} and {pairs[-1][1].tokens_per_s:,.0f} tokens/s"
                )
            rows.append(_row(number, [one for one, _ in pairs[1:]], [two for _, two in pairs[1:]]))
    offline.close()
    return table(HEAD, rows)


HEAD = ["streams", "`generate`, tokens/s", "HTTP, tokens/s", "HTTP / `generate`"]
HEAD += ["CPU of `generate`", "of the engine", "of the event loop", "of the client"]


def _row(number: int, offline: list[Found], served: list[Found]) -> list[object]:
    def cpu(seconds: list[float]) -> str:
        tokens = served[0].tokens
        return spread((one / tokens * 1e6 for one in seconds), 0)

    return [
        number,
        spread((one.tokens_per_s for one in offline), 0),
        spread((one.tokens_per_s for one in served), 0),
        spread(ratios([one.tokens_per_s for one in served], [one.tokens_per_s for one in offline]), 3),
        cpu([one.cpu.engine for one in offline]),
        cpu([one.cpu.engine for one in served]),
        cpu([one.cpu.events for one in served]),
        cpu([one.client for one in served]),
    ]


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each stream (default 128)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 128, 500], help="of the built-in model")
    parser.add_argument("--api-processes", type=int, default=1, help="of the server (default 1)")
    arguments = parser.parse_args()
    parts = []
    if arguments.model == "qwen":
        with tempfile.TemporaryDirectory() as folder:
            rows = compare(
                model_folder(Path(folder)), [32], arguments.tokens, arguments.repeats, arguments.api_processes
            )
        parts.append(f"Qwen2.5-0.5B's shape in bf16 with random weights; asked: above {ASKED}.\n\n{rows}")
    rows = compare(None, arguments.streams, arguments.tokens, arguments.repeats, arguments.api_processes)
    parts.append(f"The built-in model, whose steps take a few milliseconds (reported):\n\n{rows}")
    intro = (
        f"Prompts of {PROMPT_TOKENS} token ids, {arguments.tokens} output tokens each, greedy. Medians (least to "
        "greatest); CPU in µs per output token, of all threads; the event loop's is that of the API processes, and of "
        "what the engine's process sends them; the client shares the cores."
    )
    title, variant = "What HTTP costs", ""
    if arguments.api_processes > 1:
        variant = f"--api-processes {arguments.api_processes}"
        title += f" with {variant}"
    publish("http_cost", title, "\n\n".join([intro, *parts]), arguments.write, variant)


if __name__ == "__main__":
    main()
