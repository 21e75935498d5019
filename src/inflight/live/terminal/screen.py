"""Draw the live feed in a terminal: tiles, the batch as characters, memory and queues; and read the keys."""

from __future__ import annotations

import colorsys
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from inflight.counted import counted, printable
from inflight.live.frames import BlocksPart, Frame, Hello, LanePart, Latencies, Message, RequestInfo
from inflight.live.terminal.feed import FeedReader

DRAWINGS_PER_SECOND = 5
LOOK_SECONDS = 1.2  # for one picture, long enough for rates
_GLYPHS = ("█", "▄", "▓", "░", "·")  # prompt, next token, recomputed, padding, idle
_REASONS = {
    "rows": "for a row",
    "blocks": "for KV blocks",
    "budget": "for the step's tokens",
    "share": "for its share",
    "window": "for the running batch",
    "adapter": "for an adapter",
    "kv": "for keys and values in transfer",
}


MAX_COLUMNS = 400
_NOTABLE = (4, 2, 3, 1, 0)  # of each kind of work; the larger, the more notable: prompts before single tokens


class Cell(NamedTuple):
    """The work of a row in a frame."""

    sequence: int
    work: int


Column = dict[int, Cell]  # by row


def _with_tiers(now: BlocksPart | None, before: BlocksPart | None) -> BlocksPart | None:
    """Add the last tiers to blocks: tiers come with maps of blocks only, twice a second."""
    if now is None or before is None or now.map:
        return now or before
    return replace(now, host=before.host, disk=before.disk)


class Engine:
    """One of several engines: its last frame and blocks."""

    def __init__(self, hello: Hello):
        self.hello = hello
        self.frame: Frame | None = None
        self.blocks: BlocksPart | None = None

    def add(self, frame: Frame) -> None:
        self.frame = frame
        self.blocks = _with_tiers(frame.blocks, self.blocks)


class FeedState:
    """The last state of the feed. One thread takes messages, another reads, both under `lock`.

    Attributes:
        trouble: Why no frames come; empty: they do.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hello: Hello | None = None
        self.frame: Frame | None = None
        self.blocks: BlocksPart | None = None
        self.trouble = ""
        self.columns: deque[Column] = deque(maxlen=MAX_COLUMNS)
        self.requests: dict[int, RequestInfo] = {}
        self.engines: dict[str, Engine] = {}  # of several, those that send frames
        self.preempted = self.ended = 0
        self.paused = False

    def take(self, message: Message | str) -> None:
        """Note a message, or a sentence on why none come."""
        with self.lock:
            if isinstance(message, str):
                self.trouble = message
            elif isinstance(message, Hello):
                self._begin(message)
            elif isinstance(message, Frame):
                self._add(message)
            else:
                self.trouble = message.sentence

    def _begin(self, hello: Hello) -> None:
        if hello.engine:
            self.engines[hello.engine] = Engine(hello)
            return
        if self.hello is None or self.hello.server != hello.server:
            self.columns.clear()
            self.requests.clear()
            self.engines.clear()
            self.preempted = self.ended = 0
        self.hello, self.trouble = hello, ""
        self.requests.update({one.number: one for one in hello.requests})

    def _add(self, frame: Frame) -> None:
        self.trouble = ""
        if frame.engine:
            self._add_to_engine(frame)
            return
        self.requests.update({one.number: one for one in frame.requests})
        for one in frame.ended:
            self.requests.pop(one.info.number, None)
        self.preempted += len(frame.preempted)
        self.ended += len(frame.ended)
        if self.paused:
            return
        self.frame = frame
        self.blocks = _with_tiers(frame.blocks, self.blocks)
        there = {one.name for one in frame.members if one.state != "not loaded"}
        self.engines = {name: one for name, one in self.engines.items() if name in there}
        column: Column = {}
        for run in frame.runs:
            before = column.get(run.row)
            if before is None or before.sequence != run.sequence or _NOTABLE[run.work] > _NOTABLE[before.work]:
                column[run.row] = Cell(run.sequence, run.work)
        self.columns.append(column)

    def _add_to_engine(self, frame: Frame) -> None:
        self.preempted += len(frame.preempted)
        self.ended += len(frame.ended)
        engine = self.engines.get(frame.engine)
        if engine is not None and not self.paused:
            engine.add(frame)


def watch(reader: FeedReader) -> int:
    """Draw until a key ends it. Return the exit code."""
    seen, console = FeedState(), Console()
    reader.follow(seen.take)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            with seen.lock:
                shown = picture(seen, reader.url, console.width, console.height)
            live.update(shown, refresh=True)
            key = pressed(1 / DRAWINGS_PER_SECOND)
            if key in ("q", "Q", "\x1b", "\x03"):
                return 0
            if key == " ":
                with seen.lock:
                    seen.paused = not seen.paused


def look_once(reader: FeedReader) -> int:
    """Print one picture as text. Return the exit code. Raises FeedError."""
    seen, end = FeedState(), 0.0
    for message in reader.messages(wait=False):
        seen.take(message)
        end = end or time.monotonic() + LOOK_SECONDS
        if seen.frame is not None and time.monotonic() >= end:
            break
    console = Console()
    console.print(picture(seen, reader.url, min(console.width, 120), 0))
    return 0


class _Printable:
    """A picture with escapes for names of lanes and models that would steer the terminal."""

    def __init__(self, inner: RenderableType):
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, keep="\n"))


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a key, and returns it, or ""."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def picture(seen: FeedState, url: str, width: int, height: int) -> RenderableType:
    """Return the picture. height: of the screen; 0: all that there is."""
    hello, frame = seen.hello, seen.frame
    if hello is None or frame is None:
        return _Printable(Text(seen.trouble or f"waiting for {url} …", style="dim"))
    parts: list[RenderableType] = [_head(seen, hello, url), _tiles(hello, frame, seen.blocks)]
    if hello.members_only or frame.members:
        parts.append(_members(frame))
        for one in seen.engines.values():
            parts += _engine(one, width)
    if not hello.members_only:
        queues = _queues(frame)
        room = 10_000 if not height else height - 11 - len(frame.lanes)
        parts += [_batch(seen.columns, hello, width, max(4, room)), _memory(seen.blocks, width), queues]
    if height:
        parts.append(Text("q ends · Space pauses", style="dim"))
    return _Printable(Group(*parts))


def _head(seen: FeedState, hello: Hello, url: str) -> Text:
    state = (
        ("lost", "bold red") if seen.trouble else ("paused", "bold yellow") if seen.paused else ("live", "bold green")
    )
    text = Text.assemble(("inflight ", "bold"), hello.title, "  ", state, (f"  {url}", "dim"))
    text.append(f"   {counted(seen.ended, 'request')} ended, {counted(seen.preempted, 'preemption')}", "dim")
    if seen.trouble:
        text.append(f"\n{seen.trouble}", "red")
    if not hello.sees_all:
        text.append(f"\nYou see the requests of {hello.tenant}; other tenants' requests have no names.", "yellow")
    return text


def _engine(one: Engine, width: int) -> list[RenderableType]:
    """Return one of several engines: its numbers, its memory and its queues."""
    if one.frame is None:
        return []
    head = Text.assemble("\n", (one.hello.title, "bold"))
    return [head, _tiles(one.hello, one.frame, one.blocks), _memory(one.blocks, width), _queues(one.frame)]


def _tiles(hello: Hello, frame: Frame, blocks: BlocksPart | None) -> Columns:
    rates, running = frame.rates, sum(lane.running for lane in frame.lanes)
    waiting = sum(lane.waiting for lane in frame.lanes)
    tiles = [("output/s", f"{rates.output_tokens:,.0f}")]
    if not hello.members_only:
        tiles += [
            ("prompt/s", f"{rates.prompt_tokens:,.0f}"),
            ("running", f"{running} of {hello.max_rows}"),
            ("waiting", f"{waiting:,}"),
            ("first token", _latency(rates.ttft)),
            ("between tokens", _latency(rates.itl)),
            ("step", _step(frame)),
        ]
        if blocks is not None:
            tiles.append(("KV held", f"{blocks.held / max(1, hello.num_blocks):.0%}"))
    shown = [Group(Text(name, style="dim"), Text(value, style="bold")) for name, value in tiles]
    return Columns(shown, padding=(0, 2))


def _latency(one: Latencies) -> str:
    if not one.count:
        return "–"
    met = f" {one.met / one.with_target:.0%} in time" if one.with_target else ""
    return f"{_seconds(one.p50)}, p95 {_seconds(one.p95)}{met}"


def _step(frame: Frame) -> str:
    if not frame.steps:
        return "–"
    last = frame.steps[-1]
    predicted = f" ({_seconds(last.predicted / last.steps)} predicted)" if last.predicted else ""
    return f"{_seconds(last.seconds / last.steps)}{predicted}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def _batch(columns: Iterable[Column], hello: Hello, width: int, max_rows: int) -> Text:
    """Draw a line for each row; the newest column is on the right."""
    shown = list(columns)[-(width - 5) :]
    rows = min(hello.max_rows, max_rows, 1 + max((row for column in shown for row in column), default=3))
    text = Text()
    for row in range(rows):
        text.append(f"{row:>4} " + " " * (width - 5 - len(shown)), "dim")
        for column in shown:
            cell = column.get(row)
            text.append(" " if cell is None else _GLYPHS[cell.work], "" if cell is None else _style(cell))
        text.append("\n")
    left_out = {row for column in shown for row in column if row >= rows}
    if left_out:
        text.append(f"     and {counted(len(left_out), 'more row')}\n", "dim")
    return text


def _style(cell: Cell) -> str:
    if cell.work >= 3:
        return "bright_black"
    hue = (cell.sequence * 137.508 + 245) % 360 / 360
    red, green, blue = colorsys.hls_to_rgb(hue, 0.62 if cell.work == 1 else 0.52, 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _memory(blocks: BlocksPart | None, width: int) -> Text:
    if blocks is None:
        return Text()
    parts = (
        ("held", blocks.held - blocks.shared - blocks.moving, "blue"),
        ("shared", blocks.shared, "magenta"),
        ("moving", blocks.moving, "yellow"),
        ("evictable", blocks.evictable, "bright_black"),
        ("free", blocks.free, ""),
    )
    all_blocks, cells = max(1, sum(count for _, count, _ in parts)), max(10, width - 5)
    text = Text("  KV ", "dim")
    for name, count, style in parts:
        text.append(("·" if name == "free" else "■") * max(0, min(cells, round(cells * count / all_blocks))), style)
    counts = (f"{name} {count:,}" for name, count, _ in parts if count or name != "moving")
    text.append("\n     " + " · ".join(counts), "dim")
    for name, tier in (("on the host", blocks.host), ("in the folder", blocks.disk)):
        if tier is not None:
            text.append(f" · {name} {tier.kept + tier.wanted + tier.moving:,} of {tier.blocks:,}", "dim")
            text.append(f" ({tier.wanted:,} of preempted requests)" if tier.wanted else "", "dim")
    return text


def _queues(frame: Frame) -> Table:
    table = Table.grid(padding=(0, 3))
    for lane in frame.lanes:
        table.add_row(
            Text(f"     {lane.name}"), f"{lane.running:,} running", f"{lane.waiting:,} waiting", Text(_why(lane), "dim")
        )
    return table


def _why(lane: LanePart) -> str:
    if not lane.waiting:
        return ""
    behind = f", behind {lane.behind}" if lane.behind and lane.behind != lane.name else ""
    deferred = "".join(f", {count:,} {_REASONS.get(what, what)}" for what, count in lane.deferred.items())
    reason = _REASONS.get(lane.stands_for, "for " + (lane.stands_for or "the step"))
    return f"{reason}{behind}, {_seconds(lane.oldest)}{deferred}"


def _members(frame: Frame) -> Table:
    table = Table("engine", "state", "running", "waiting", "KV held", "output/s", box=None, header_style="dim")
    for one in frame.members:
        held = f"{one.held_blocks / one.blocks:.0%}" if one.blocks else "–"
        rate = f"{one.output_tokens_per_s:,.0f}"
        table.add_row(Text(one.name), Text(one.state), f"{one.running:,}", f"{one.waiting:,}", held, rate)
    return table
