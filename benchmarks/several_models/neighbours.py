"""A chat beside an embedder on the same cores: the gaps between its tokens, with and without that load, in turns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import log_line
from benchmarks.results import table
from benchmarks.several_models.asking import TEXT_TOKENS, Chatting, Embedding, model_table, models_server, percentile
from benchmarks.shapes import BGE_BASE, QWEN25_05B, write_config
from benchmarks.speculation.legs import with_interval
from inflight.metrics.confidence import paired_ratio

ASKED = 1.15
STREAMS, TOKENS, PAUSE = 2, 40, 3.0
CALLERS, TEXTS = 2, 8


@dataclass(frozen=True, slots=True)
class Way:
    """How the embedder runs beside the chat.

    Attributes:
        tier: Of the embedder's calls.
        weights: Of chat and embedder.
        under: The command under which the embedder has a server of its own, so that the system alone shares the cores.
    """

    tier: str = "default"
    weights: tuple[int, int] = (1, 1)
    under: tuple[str, ...] = ()


WAYS = {
    "in the background": Way("flex"),
    "in the foreground, 10 to 1": Way(weights=(10, 1)),
    "in the foreground, 1 to 1": Way(),
    "a server of its own": Way(under=("env",)),
    "a server of its own, `nice -n 19`": Way(under=("nice", "-n", "19")),
    "a server of its own, SCHED_IDLE": Way(under=("chrt", "-i", "0")),
}


def report(turns: int, seconds: float) -> str:
    shown = [_row(name, way, turns, seconds) for name, way in WAYS.items()]
    return (
        f"Chat: Qwen2.5-0.5B's shape, {STREAMS} clients with answers of {TOKENS} tokens and {PAUSE:g} s between them "
        f"on average; embedder: bge-base's shape, {CALLERS} callers with {TEXTS} texts of {TEXT_TOKENS} tokens each, "
        f"as fast as they are answered; both in bf16 with random weights. {turns} turns of {seconds:.0f} s with and "
        f"without the embedder's load. Ratios within each turn, with a 95 % interval; at most {ASKED} is asked of the "
        "p99. In brackets what the embedder answers without a chat. Beside a server of its own the cores are shared by "
        "the system alone.\n\n"
        + table(("embedder", "p50 of gaps alone", "p50 beside", "p99 beside", "texts a second (alone)"), shown)
    )


@contextmanager
def _servers(way: Way) -> Iterator[tuple[int, int]]:
    """The ports of chat and embedder."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as leave:
        at = Path(folder)
        files = write_config(at / "chat", QWEN25_05B), write_config(at / "embed", BGE_BASE)
        chat = model_table("chat", files[0], "kv-memory = 0.3", f"weight = {way.weights[0]}")
        embed = model_table("embed", files[1], 'pooling = "mean"', f"weight = {way.weights[1]}")
        if way.under:
            ports = (
                leave.enter_context(models_server(at / "chat", "memory = 4\n" + chat)).port,
                leave.enter_context(models_server(at / "embed", "memory = 4\n" + embed, *way.under)).port,
            )
        else:
            ports = (leave.enter_context(models_server(at, "memory = 8\n" + chat + embed)).port,) * 2
        yield ports


def _row(name: str, way: Way, turns: int, seconds: float) -> tuple[str, ...]:
    with _servers(way) as (chat_port, embed_port):
        alone_rate = _texts_alone(embed_port, way.tier, seconds)
        chatting = Chatting(chat_port, "chat", STREAMS, TOKENS, PAUSE)
        time.sleep(3)
        alone: list[list[float]] = []
        beside: list[list[float]] = []
        texts = 0
        for turn in range(turns):
            alone.append(chatting.gaps(seconds))
            with Embedding(embed_port, "embed", CALLERS, TEXTS, way.tier) as load:
                time.sleep(0.5)
                before = load.answered
                beside.append(chatting.gaps(seconds))
                texts += load.answered - before
            log_line(f"{name}: turn {turn + 1} of {turns}, {_shown(alone[-1])} alone, {_shown(beside[-1])} beside")
            time.sleep(0.5)
        chatting.end()
    ratios = [
        paired_ratio([percentile(one, share) for one in beside], [percentile(one, share) for one in alone])
        for share in (0.5, 0.99)
    ]
    assert ratios[0] is not None and ratios[1] is not None
    together = [gap for one in alone for gap in one]
    rate = f"{texts / turns / seconds:.1f} ({alone_rate:.1f})"
    return name, f"{percentile(together, 0.5) * 1000:.1f} ms", with_interval(ratios[0]), with_interval(ratios[1]), rate


def _texts_alone(port: int, tier: str, seconds: float) -> float:
    with Embedding(port, "embed", CALLERS, TEXTS, tier) as load:
        time.sleep(1)
        before = load.answered
        time.sleep(seconds)
        return (load.answered - before) / seconds


def _shown(gaps: Sequence[float]) -> str:
    return f"p50 {percentile(gaps, 0.5) * 1000:.1f} ms p99 {percentile(gaps, 0.99) * 1000:.1f} ms"
