"""A switch between two models with room for one, beside a server of one that is started, and a load into free room: all
from the page cache."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from benchmarks.comparison import log_line
from benchmarks.results import table
from benchmarks.served import Server
from benchmarks.several_models.asking import first_answer, in_turn, models_server
from benchmarks.speculation.legs import with_interval
from inflight.metrics.confidence import paired_ratio

ASKED = 1.2
KV = "0.2"  # GiB
REST_SECONDS = 6.0  # an idle model stays for as long as loading takes; and the next process starts ahead meanwhile


def report(file: Path, turns: int) -> str:
    with tempfile.TemporaryDirectory() as folder, models_server(Path(folder), _models(file)) as server:
        names = ["b", "a"]
        first_answer(server.port, "b")

        def switch() -> float:
            time.sleep(REST_SECONDS)
            names.reverse()
            return _said("switch", first_answer(server.port, names[0]))

        def load() -> float:
            """Into room that is free."""
            body = {"model": names[0]}
            httpx.post(f"http://127.0.0.1:{server.port}/v1/models/unload", json=body).raise_for_status()
            time.sleep(REST_SECONDS)
            return _said("load", first_answer(server.port, names[0]))

        def start() -> float:
            began = time.perf_counter()
            with Server(str(file), "--kv-memory", KV) as alone:
                first_answer(alone.port, str(file.stem))
                seconds = time.perf_counter() - began
            return _said("start", seconds)

        switches, loads, starts = in_turn(turns, switch, load, start)
    size = file.stat().st_size / 2**20
    rows = [_row("switch, from the call", switches, None)]
    rows += [_row("load into free room, from the call", loads, switches)]
    rows += [_row("server of one model, from its start", starts, switches)]
    return (
        f"Until one token is answered; Qwen2.5-0.5B's shape as a GGUF file of {size:.0f} MiB (Q8_0), random weights, "
        f"in the page cache; {turns} turns. Ratios within each turn, with a 95 % interval; at most {ASKED} is asked. A "
        "switch ends the other model's process; a switch and a load go into one that was started ahead.\n\n"
        + table(("", "seconds", "a switch beside it"), rows)
    )


def _models(file: Path) -> str:
    tables = [f'[models.{name}]\nmodel = "{file}"\nkv-memory = {KV}\nsize = 1.5\n' for name in ("a", "b")]
    return "memory = 2\nmax-wait = 100\n" + "".join(tables)


def _row(name: str, seconds: Sequence[float], switches: Sequence[float] | None) -> tuple[str, str, str]:
    ratio = None if switches is None else paired_ratio(switches, seconds)
    return name, f"{statistics.fmean(seconds):.2f} s", "" if ratio is None else with_interval(ratio)


def _said(what: str, seconds: float) -> float:
    log_line(f"{what} {seconds:.2f} s")
    return seconds
