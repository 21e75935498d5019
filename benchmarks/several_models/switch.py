"""A switch between two models with room for one, beside a server of one that is started: both from the page cache."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.comparison import tell
from benchmarks.results import table
from benchmarks.served import Server
from benchmarks.several_models.asking import first_answer, in_turn, models_server
from benchmarks.speculation.legs import told
from inflight.metrics.confidence import paired_ratio

ASKED = 1.2
KV = "0.2"  # GiB
REST_SECONDS = 6.0  # an idle model stays for as long as loading takes; and the next process starts ahead meanwhile


def report(file: Path, turns: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        text = "memory = 2\nmax-wait = 100\n"
        for name in ("a", "b"):
            text += f'[models.{name}]\nmodel = "{file}"\nkv-memory = {KV}\nsize = 1.5\n'
        with models_server(Path(folder), text) as server:
            names = ["a", "b"]
            first_answer(server.port, "b")

            def switch() -> float:
                time.sleep(REST_SECONDS)
                names.reverse()
                seconds = first_answer(server.port, names[-1])
                tell(f"switch {seconds:.2f} s")
                return seconds

            def start() -> float:
                began = time.perf_counter()
                with Server(str(file), "--kv-memory", KV) as alone:
                    first_answer(alone.port, str(file.stem))
                    seconds = time.perf_counter() - began
                tell(f"start {seconds:.2f} s")
                return seconds

            names.reverse()
            switches, starts = in_turn(turns, switch, start)
    ratio = paired_ratio(switches, starts)
    assert ratio is not None
    shown = [
        ("server of one model, from its start", f"{sum(starts) / turns:.2f} s", ""),
        ("switch, from the call", f"{sum(switches) / turns:.2f} s", told(ratio)),
    ]
    size = file.stat().st_size / 2**20
    return (
        f"Until one token is answered; Qwen2.5-0.5B's shape as a GGUF file of {size:.0f} MiB (Q8_0), random weights, "
        f"in the page cache; {turns} turns. The ratio within each turn, with a 95 % interval; at most {ASKED} is "
        "asked. A switch ends the other model's process, and loads into one that was started ahead.\n\n"
        + table(("", "seconds", "ratio"), shown)
    )
