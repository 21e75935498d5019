"""How light the program is: import, first token, resident memory, CPU when idle.

Measures whole processes, as a user starts them; knows nothing of what they do inside.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import table, write_section
from benchmarks.served import Server
from benchmarks.shapes import QWEN25_05B, write_config
from benchmarks.streams import post, run, send_all
from inflight.build import BUILT_IN

_MEMORY = """
import json, sys
from inflight.api import LLM, SamplingParams
llm = LLM(sys.argv[1], load_format=sys.argv[2], num_blocks=448, max_model_len=4096)
prompts = [[i * 3 + j for j in range(200)] for i in range(32)]
llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak": peak}))
"""


def import_seconds() -> float:
    code = "import time; t = time.perf_counter(); import inflight; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout)


def first_token_seconds() -> float:
    """From starting the command to its first character on a terminal."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "inflight.cli", "run", "What is continuous batching?"]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    select.select([controller], [], [], 60)
    seconds = time.perf_counter() - started
    os.close(terminal)
    try:
        while os.read(controller, 4096):
            pass
    except OSError:
        pass  # the terminal is closed when the command has ended
    process.wait()
    os.close(controller)
    return seconds


def memory(model: str, load_format: str) -> dict[str, float]:
    """Peak resident memory of a process that loads a model and fills its KV cache with 32 sequences."""
    from inflight.execution.sizes import kv_bytes_per_token, weight_bytes
    from inflight.models.registry import read_folder

    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, model, load_format], capture_output=True, check=True, text=True
    )
    config = read_folder(model, to_run=True)
    weights = weight_bytes(config, "bfloat16")
    cache = 448 * 16 * kv_bytes_per_token(config, "bfloat16")
    peak = json.loads(run.stdout)["peak"]
    mb = 1e6
    return {"peak": peak / mb, "weights": weights / mb, "cache": cache / mb, "beside": (peak - weights - cache) / mb}


def idle_cpu_share(seconds: float = 5.0) -> float:
    """CPU time over wall time of a process whose engine has answered once and waits."""
    from inflight.api import AsyncEngine, SamplingParams

    async def idle() -> float:
        async with AsyncEngine() as engine:
            async for _ in engine.generate("Hello", SamplingParams(max_tokens=4)):
                pass
            await asyncio.sleep(0.5)
            before = time.process_time()
            await asyncio.sleep(seconds)
            return (time.process_time() - before) / seconds

    return asyncio.run(idle())


def serve_seconds() -> float:
    """From starting the command to the first 200 of /health."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "inflight.cli", "serve", "--port", str(port)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _healthy(port):
            if process.poll() is not None:
                raise RuntimeError("The server ended before it was ready; start it by hand to see why.")
            time.sleep(0.005)
        return time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return client.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:  # the port is not open yet
        return False


def idle_server_seconds(seconds: float = 5.0) -> tuple[float, float]:
    """CPU of a server that has answered once and waits: its event loop and its engine."""
    with Server() as server:
        body = {"prompt": "Hello", "max_tokens": 4, "stream": True}
        run(send_all(server.port, [post("/v1/completions", body)]))
        time.sleep(0.5)
        before = server.cpu()
        time.sleep(seconds)
        taken = server.cpu() - before
    return taken.events, taken.engine


def checkpoint(folder: Path) -> str:
    """The same shape as a real checkpoint in shards, so that loading it goes through the memory-mapped files."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(folder, QWEN25_05B)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="300MB")
    shutil.copy(BUILT_IN / "tokenizer.json", folder)  # any will do: the prompts are token ids
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    repeats = range(arguments.repeats)

    def median(values: list[float]) -> str:
        return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"

    rows: list[list[object]] = [
        ["`import inflight`", median([import_seconds() for _ in repeats]), "< 0.2 s"],
        [
            "`inflight run` to its first token",
            median([first_token_seconds() for _ in repeats]),
            "< 1 s",
        ],
    ]
    rows.append(["`inflight serve` to the 200 of /health", median([serve_seconds() for _ in repeats]), "< 1 s"])
    with tempfile.TemporaryDirectory() as folder:
        sizes = memory(checkpoint(Path(folder) / "model"), "auto")
    rows.append(
        [
            "peak memory, 0.5B-shaped checkpoint in 300 MB shards",
            f"{sizes['peak']:,.0f} MB = weights {sizes['weights']:,.0f} + KV cache {sizes['cache']:,.0f} "
            f"+ {sizes['beside']:,.0f}",
            "weights + KV cache + 200 MB",
        ]
    )
    rows.append(["CPU of an idle engine", f"{idle_cpu_share():.2%} of one core", "none"])
    events, engine = idle_server_seconds()
    rows.append(["CPU of an idle server in 5 s", f"{events:.2f} s in its event loop, {engine:.2f} s beside", "none"])
    body = table(["what", "measured", "asked"], rows)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.light --repeats {arguments.repeats}"
        write_section("light", "Lightness", command, body)


if __name__ == "__main__":
    main()
