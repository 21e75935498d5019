"""Two embedders with room for both, always called: whether they share the cores evenly, and what sharing costs."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.comparison import log_line
from benchmarks.results import table
from benchmarks.several_models.asking import Embedding, model_table, models_server
from benchmarks.shapes import BGE_BASE, write_config
from benchmarks.speculation.legs import with_interval
from inflight.metrics.confidence import paired_ratio

ASKED = 0.1
CALLERS, TEXTS = 2, 2
NAMES = ("a", "b")
WAYS = {"one server": (1, 1), "one server, weights 3 to 1": (3, 1), "a server each": None}


def report(turns: int, seconds: float) -> str:
    rows = [_row(name, weights, turns, seconds) for name, weights in WAYS.items()]
    return (
        f"bge-base's shape twice, in bf16 with random weights; {CALLERS} callers of each with {TEXTS} texts a call, as "
        f"fast as they are answered; {turns} turns of {seconds:.0f} s, alone and together. With equal weights the two "
        f"rates are asked to differ by {ASKED:.0%} at most. Ratios within each turn, with a 95 % interval. With a "
        "server each the system alone shares the cores.\n\n"
        + table(("", "texts a second alone", "together", "first over second", "together over alone"), rows)
    )


def _row(name: str, weights: tuple[int, int] | None, turns: int, seconds: float) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as leave:
        file = write_config(Path(folder), BGE_BASE)
        tables = [
            model_table(one, file, 'pooling = "mean"', f"weight = {weight}")
            for one, weight in zip(NAMES, weights or (1, 1), strict=True)
        ]
        texts = ["".join(tables)] if weights else tables
        ports = []
        for number, text in enumerate(texts):
            (of_server := Path(folder) / f"server{number}").mkdir()
            ports.append(leave.enter_context(models_server(of_server, "memory = 4\n" + text)).port)
        ports = ports if len(ports) == 2 else ports * 2
        alone, together = list[float](), list[list[float]]()
        for turn in range(turns):
            alone.append(_rates(ports, seconds, NAMES[turn % 2])[0])
            together.append(_rates(ports, seconds, *NAMES))
            log_line(f"{name}: turn {turn + 1} of {turns}, {alone[-1]:.1f} texts/s alone, {together[-1]} together")
    fair = paired_ratio([one[0] for one in together], [one[1] for one in together])
    cost = paired_ratio([sum(one) for one in together], alone)
    assert fair is not None and cost is not None
    mean = sum(map(sum, together)) / turns
    return name, f"{sum(alone) / turns:.1f}", f"{mean:.1f}", with_interval(fair), with_interval(cost)


def _rates(ports: list[int], seconds: float, *names: str) -> list[float]:
    """Texts a second of each, together."""
    with ExitStack() as leave:
        loads = [leave.enter_context(Embedding(ports[NAMES.index(one)], one, CALLERS, TEXTS)) for one in names]
        time.sleep(1)
        before, began = [one.answered for one in loads], time.perf_counter()
        time.sleep(seconds)
        taken = time.perf_counter() - began
        return [(one.answered - was) / taken for one, was in zip(loads, before, strict=True)]
