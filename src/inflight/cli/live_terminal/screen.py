"""The screen: tiles, the batch as characters, memory, queues. And the keys.

Knows terminals; what is shown, `seen` has.
"""

from __future__ import annotations

import colorsys
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from inflight.cli.live_terminal.feed import FeedReader
from inflight.cli.live_terminal.seen import Cell, Column, Engine, Seen
from inflight.counted import counted, printable
from inflight.live.frames import BlocksPart, Frame, Hello, LanePart, Latencies

DRAWINGS_PER_SECOND = 5
LOOK_SECONDS = 1.2  # of one look, so that rates have something to be made of
_GLYPHS = ("█", "▄", "▓", "░", "·")  # prompt, next token, computed again, padding, idle
Tile = tuple[str, str]  # name, value
_REASONS = {
    "rows": "for a row",
    "blocks": "for KV blocks",
    "budget": "for the step's tokens",
    "share": "for its share",
    "window": "for the batch under way",
    "adapter": "for an adapter",
    "kv": "for keys and values that are brought",
}


def watch(reader: FeedReader) -> int:
    """Until a key ends it."""
    seen, console = Seen(), Console()
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
    """One look, as text. Raises FeedError."""
    seen, end = Seen(), 0.0
    for message in reader.messages(wait=False):
        seen.take(message)
        end = end or time.monotonic() + LOOK_SECONDS
        if seen.frame is not None and time.monotonic() >= end:
            break
    console = Console()
    console.print(picture(seen, reader.url, min(console.width, 120), 0))
    return 0


class _Printable:
    """A picture with escapes for what servers may name their lanes and models, and what would steer the terminal."""

    def __init__(self, inner: RenderableType):
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, keep="\n"))


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key: which, or ""."""
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


def picture(seen: Seen, url: str, width: int, height: int) -> RenderableType:
    """height: of the screen; 0: as much as there is."""
    hello, frame = seen.hello, seen.frame
    if hello is None or frame is None:
        return _Printable(Text(seen.trouble or f"waiting for {url} …", style="dim"))
    parts: list[RenderableType] = [_head(seen, hello, url), _tiles(hello, frame, seen.blocks, width)]
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


def _head(seen: Seen, hello: Hello, url: str) -> Text:
    state = (
        ("lost", "bold red") if seen.trouble else ("paused", "bold yellow") if seen.paused else ("live", "bold green")
    )
    text = Text.assemble(("inflight ", "bold"), hello.title, "  ", state, (f"  {url}", "dim"))
    text.append(f"   {counted(seen.ended, 'request')} ended, {counted(seen.preempted, 'preemption')}", "dim")
    if seen.trouble:
        text.append(f"\n{seen.trouble}", "red")
    if not hello.sees_all:
        text.append(f"\nYou see the requests of {hello.tenant}; others are there without names.", "yellow")
    return text


def _engine(one: Engine, width: int) -> list[RenderableType]:
    """One of several: its numbers, its memory and its queues."""
    if one.frame is None:
        return []
    head = Text.assemble("\n", (one.hello.title, "bold"))
    return [head, _tiles(one.hello, one.frame, one.blocks, width), _memory(one.blocks, width), _queues(one.frame)]


def _tiles(hello: Hello, frame: Frame, blocks: BlocksPart | None, width: int) -> Group:
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
    return Group(*(_in_a_row(some) for some in _rows_of(tiles, width)))


def _rows_of(tiles: Sequence[Tile], width: int) -> Iterator[list[Tile]]:
    """As many in a row as there is room for."""
    row: list[Tile] = []
    taken = 0
    for one in tiles:
        wide = max(map(len, one)) + 2
        if row and taken + wide > width:
            yield row
            row, taken = [], 0
        row.append(one)
        taken += wide
    yield row


def _in_a_row(tiles: Sequence[Tile]) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in tiles:
        table.add_column(no_wrap=True)
    table.add_row(*(Text(name, style="dim") for name, _ in tiles))
    table.add_row(*(Text(value, style="bold") for _, value in tiles))
    return table


def _latency(one: Latencies) -> str:
    if not one.count:
        return "–"
    kept = f" {one.met / one.with_target:.0%} in time" if one.with_target else ""
    return f"{_seconds(one.p50)}, 95 % {_seconds(one.p95)}{kept}"


def _step(frame: Frame) -> str:
    if not frame.steps:
        return "–"
    last = frame.steps[-1]
    predicted = f" ({_seconds(last.predicted / last.steps)} predicted)" if last.predicted else ""
    return f"{_seconds(last.seconds / last.steps)}{predicted}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def _batch(columns: Iterable[Column], hello: Hello, width: int, most: int) -> Text:
    """A line for each row; the newest column stands right."""
    shown = list(columns)[-(width - 5) :]
    rows = min(hello.max_rows, most, 1 + max((row for column in shown for row in column), default=3))
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
    told = (f"{name} {count:,}" for name, count, _ in parts if count or name != "moving")
    text.append("\n     " + " · ".join(told), "dim")
    for name, tier in (("on the host", blocks.host), ("in the folder", blocks.disk)):
        if tier is not None:
            text.append(f" · {name} {tier.kept + tier.wanted + tier.moving:,} of {tier.blocks:,}", "dim")
            text.append(f" ({tier.wanted:,} come back)" if tier.wanted else "", "dim")
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
    apart = "".join(f", {count:,} {_REASONS.get(what, what)}" for what, count in lane.deferred.items())
    reason = _REASONS.get(lane.stands_for, "for " + (lane.stands_for or "the step"))
    return f"{reason}{behind}, {_seconds(lane.oldest)}{apart}"


def _members(frame: Frame) -> Table:
    table = Table("engine", "state", "running", "waiting", "KV held", "output/s", box=None, header_style="dim")
    for one in frame.members:
        held = f"{one.held_blocks / one.blocks:.0%}" if one.blocks else "–"
        rate = f"{one.output_tokens_per_s:,.0f}"
        table.add_row(Text(one.name), Text(one.state), f"{one.running:,}", f"{one.waiting:,}", held, rate)
    return table
