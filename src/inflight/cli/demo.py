"""`inflight demo`: batching, seen: a small server, two lanes of traffic, the page in a browser, and sentences."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inflight.cli.declared import takes
from inflight.cli.files import check_writable
from inflight.cli.options import record_option
from inflight.cli.progress import Interrupt, duration
from inflight.cli.verb import Verb
from inflight.config.setting import Bound, above_zero, setting

if TYPE_CHECKING:
    from inflight.bench.run import Measured
    from inflight.cli.demonstration.server import DemoServer
    from inflight.live.terminal.narrator import Narrator
    from inflight.metrics.definitions import Percentiles

_START_S = 60.0  # in which the server must be ready
_LOOK_S = 0.2  # between two looks at the feed
_WIDTH, _COLUMN = 100, 26
_ENOUGH_S = 60.0  # in which every kind is seen
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # one is set where a window can be opened
_LOOK_FOR = {
    "chunked prefill": "in the picture of the batch a row of tall bars, a chunk of a long prompt in each; the low bars "
    "of other rows go on below and above it.",
    "batch lane": "under Queues batch waits, and for what, as soon as interactive has more to do.",
    "preemption": "a batch row breaks off where a long prompt begins, and comes back hatched: recomputed.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The demonstration."""

    port: int = setting(
        0,
        "Port; 0 takes a free one.",
        "Options",
        bound=Bound(0, 65535, "a number from 1 to 65535, or 0 for a free one"),
    )
    seconds: float | None = setting(
        None, "Seconds of traffic, then it ends; without it Ctrl-C ends it.", bound=above_zero()
    )
    no_browser: bool = setting(False, "Open no browser, print the address only.")
    full_speed: bool = setting(False, "Do not slow the steps down for eyes to follow.")


@click.command("demo", cls=Verb)
@takes(asked=DemoOptions)
@record_option
def command(record: Path | None, asked: DemoOptions) -> int:
    """See batching at work: a small server under two lanes of traffic, in the browser and in sentences.

    Within a minute there is a prompt that is computed in chunks, batch work that waits, and a preemption.
    """
    check_writable(record)
    # Imported only now, so that a mistake above is reported at once.
    from inflight.cli.demonstration.server import DemoServer

    with Interrupt() as interrupt, DemoServer(asked.port, not asked.full_speed, record) as server:
        url = _ready(server, interrupt)
        if url is None:
            return server.code or (130 if interrupt.wanted else 1)
        _begin(url, asked.full_speed, opened=not asked.no_browser and _open(url), wanted=not asked.no_browser)
        code = _run(server, url, interrupt, asked.seconds)
    if record is not None and not code:
        click.echo(f"{record} holds every step; `inflight report {record} --html page.html` draws it.")
    return code


def _ready(server: DemoServer, interrupt: Interrupt) -> str | None:
    """Return the server's address; None if it does not start."""
    end = time.monotonic() + _START_S
    while server.code is None and not interrupt.wanted:
        if (url := server.wait(_LOOK_S)) is not None:
            return url
        if time.monotonic() > end:
            click.echo(f"inflight: the server was not ready within {_START_S:g} s; see its lines above.", err=True)
            return None
    return None


def _run(server: DemoServer, url: str, interrupt: Interrupt, seconds: float | None) -> int:
    from inflight.cli.demonstration.traffic import begin
    from inflight.live.frames import Frame, Message
    from inflight.live.terminal.feed import FeedReader
    from inflight.live.terminal.narrator import Narrator

    began, stop, feed = time.monotonic(), threading.Event(), queue.SimpleQueue[Message | str]()
    narrator = Narrator(lambda kind, text: _print(f"{time.monotonic() - began:5.0f} s  {kind}", text))
    FeedReader(url, None).follow(feed.put)
    traffic, unread = begin(url, stop), ""
    try:
        while server.code is None and not interrupt.wanted and all(one.is_alive() for one in traffic):
            if seconds is not None and time.monotonic() - began >= seconds:
                break
            server.wait(_LOOK_S)
            while not feed.empty():
                message = feed.get()
                if isinstance(message, Frame):
                    narrator.take(message)
                elif isinstance(message, str) and message != unread:
                    unread = message
                    click.echo(f"inflight: {message}", err=True)
    finally:
        stop.set()
    for one in traffic:
        one.join()
    if server.code is not None:
        click.echo(f"inflight: the server ended with code {server.code}; its lines above say why.", err=True)
        return 1
    if fault := next((one.fault for one in traffic if one.fault is not None), None):
        click.echo(f"inflight: the traffic ended: {fault}", err=True)
        return 1
    _sum_up([one.measured for one in traffic if one.measured is not None], narrator, time.monotonic() - began)
    return 0


def _sum_up(measured: Sequence[Measured], narrator: Narrator, seconds: float) -> None:
    from inflight.live.terminal.narrator import KINDS

    click.echo("")
    if not measured:
        click.echo("It ended before the first request was sent.")
        return
    rate = sum(one.summary.output_tokens_per_s for one in measured)
    click.echo(f"After {duration(seconds)}: {rate:,.0f} output tokens/s. Time to the first token:")
    for one in measured:
        for lane, summary in one.by_lane.items():
            click.echo(f"  {lane:<12} {summary.requests:>5,} answers   {_shown(summary.ttft)}")
    click.echo(f"Seen: {', '.join(f'{narrator.seen[kind]:,} × {kind}' for kind in KINDS)}.")
    missing = [kind for kind in KINDS if not narrator.seen[kind]]
    if missing and seconds < _ENOUGH_S:
        click.echo(f"Not seen yet: {' and '.join(missing)}; let it run for a minute.")


def _begin(url: str, full_speed: bool, *, opened: bool, wanted: bool) -> None:
    from inflight.cli.demonstration.server import BLOCKS, PACE, ROWS, STEP_TOKENS

    where = "is open in your browser" if opened else "is for your browser"
    click.echo(f"{url} {where}." + (" None could be opened from here." if wanted and not opened else ""))
    slowed = (
        "Steps are not slowed."
        if full_speed
        else f"Steps are slowed to {PACE.step * 1e3:g} ms and {PACE.token * 1e3:g} ms a token, as a larger model's, so "
        "that eyes can follow; --full-speed turns that off."
    )
    text = f"An engine of {ROWS} rows, {BLOCKS} KV blocks of 16 tokens and {STEP_TOKENS} tokens a step. {slowed}"
    click.echo("\n".join(textwrap.wrap(text, _WIDTH, break_on_hyphens=False)))
    click.echo("\nWhat to look for:")
    for kind, text in _LOOK_FOR.items():
        _print(f"  {kind}", text)
    click.echo("\nAs it happens (Ctrl-C ends it):")


def _open(url: str) -> bool:
    """Open the page, and return whether there was a browser; one that would take this terminal for itself is none."""
    import webbrowser

    has_screen = sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS)
    with contextlib.suppress(webbrowser.Error, OSError):
        return has_screen and webbrowser.open(url)
    return False


def _shown(ttft: Percentiles) -> str:
    if ttft.p50 is None or ttft.p95 is None:
        return "none completed"
    return f"p50 {ttft.p50 * 1e3:>7,.0f} ms   p95 {ttft.p95 * 1e3:>7,.0f} ms"


def _print(head: str, text: str) -> None:
    """Print the head in its column, and the text beside it."""
    first, after = f"{head:<{_COLUMN}}", " " * _COLUMN
    click.echo("\n".join(textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=after)))
