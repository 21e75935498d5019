"""Two models of equal load and room for one: how often they switch, what of the time that takes, how calls wait."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from pathlib import Path

import httpx

from benchmarks.comparison import log_line
from benchmarks.results import table
from benchmarks.several_models.asking import metric, models_server, percentile
from inflight.server.model_pool.resident import HOLD_SWITCHES

TOKENS = 16


def report(file: Path, rate: float, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        text = "memory = 2\nmax-wait = 100\n"
        for name in ("a", "b"):
            text += f'[models.{name}]\nmodel = "{file}"\nkv-memory = 0.2\nsize = 1.5\n'
        with models_server(Path(folder), text) as server:
            times, lost = _called(server.port, rate, seconds)
            loads, loading = (metric(server.port, f"inflight_model_load_seconds_{one}") for one in ("count", "sum"))
    switches_if_none_waits = seconds * rate / 2
    share = loading / seconds
    shown = [
        ("calls", f"{len(times)}, {lost} of them lost"),
        ("loads", f"{loads:.0f}; where every change of the model called were one: about {switches_if_none_waits:.0f}"),
        ("of the time spent on loading", f"{share:.0%}; at most {1 / (1 + HOLD_SWITCHES):.0%} once both are busy"),
        ("a call, median and p99", f"{percentile(times, 0.5):.1f} s, {percentile(times, 0.99):.1f} s"),
    ]
    return (
        f"Poisson arrivals, {rate:g} calls a second in all for {seconds:.0f} s, each for one of the two by a coin; "
        f"{TOKENS} tokens each, the shape and file of the section before.\n\n" + table(("", ""), shown)
    )


def _called(port: int, rate: float, seconds: float) -> tuple[list[float], int]:
    """Seconds of each call that was answered, and how many were not."""
    chance, times, lost = random.Random(3), list[float](), 0
    lock = threading.Lock()

    def call(model: str) -> None:
        nonlocal lost
        body = {"model": model, "prompt": [1, 2, 3], "max_tokens": TOKENS, "ignore_eos": True}
        began = time.perf_counter()
        answered = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=150).status_code == 200
        with lock:
            if answered:
                times.append(time.perf_counter() - began)
            else:
                lost += 1

    threads, began, due = [], time.perf_counter(), 0.0
    while (due := due + chance.expovariate(rate)) < seconds:
        time.sleep(max(0.0, began + due - time.perf_counter()))
        threads.append(threading.Thread(target=call, args=(chance.choice("ab"),)))
        threads[-1].start()
    for one in threads:
        one.join()
    log_line(f"{len(times)} calls")
    return times, lost
