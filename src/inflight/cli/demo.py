"""`inflight demo`: batching, seen. A small server, two lanes of traffic, the page in a browser, and words for what
happens.

Knows the order of things and how they are told; the server, the traffic and the words are `demonstration`'s.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inflight.cli.declared import SettingOption
from inflight.cli.files import check_writable
from inflight.cli.progress import Interrupt, duration
from inflight.cli.verb import Verb

if TYPE_CHECKING:
    from inflight.bench.run import Measured
    from inflight.cli.demonstration.narrator import Kind
    from inflight.cli.demonstration.server import DemoServer
    from inflight.cli.demonstration.traffic import Traffic
    from inflight.metrics.definitions import Percentiles

_START_S = 60.0  # in which the server must be ready
_LOOK_S = 0.2  # between two looks at what there is to be told
_WIDTH = 100
_ENOUGH_S = 60.0  # in which all that there is to see has been seen
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # one is set where a window can be opened, or who opens it is said


@click.command("demo", cls=Verb)
@click.option(
    "--port",
    cls=SettingOption,
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port; 0 takes a free one.",
)
@click.option("--seconds", type=float, help="End after so many seconds of traffic; else with Ctrl-C.")
@click.option("--no-browser", is_flag=True, help="Open no browser, just say the address.")
@click.option("--full-speed", is_flag=True, help="Do not slow the steps down for eyes to follow.")
@click.option(
    "--record", type=click.Path(dir_okay=False, path_type=Path), help="Write the step record (JSON lines) here."
)
def command(port: int, seconds: float | None, no_browser: bool, full_speed: bool, record: Path | None) -> int:
    """See batching at work: a small server under two lanes of traffic, in the browser and in words.

    Within a minute there is a prompt that is computed in pieces, batch work that gives way, and a preemption.
    """
    if seconds is not None and not 0 < seconds < math.inf:
        raise click.UsageError(f"--seconds is {seconds:g}; give a number above 0, or leave it out and press Ctrl-C.")
    check_writable(record)
    # Loaded only now, so that a mistake above is told at once.
    from inflight.cli.demonstration.server import DemoServer

    with Interrupt() as interrupt, DemoServer(port, not full_speed, record) as server:
        show = _Show(server, interrupt, seconds)
        url = show.ready()
        if url is None:
            return server.code or (130 if interrupt.wanted else 1)
        _begin(url, full_speed, opened=not no_browser and _open(url), wanted=not no_browser)
        code = show.run(url)
    if record is not None and not code:
        click.echo(f"{record} holds every step; `inflight report {record} --html page.html` draws it.")
    return code


class _Show:
    """What is told while it goes on, and at the end."""

    def __init__(self, server: DemoServer, interrupt: Interrupt, seconds: float | None):
        self._server, self._interrupt, self._seconds = server, interrupt, seconds
        self._seen: Mapping[Kind, int] = {}

    def ready(self) -> str | None:
        """The server's address; None where there is none."""
        from inflight.cli.demonstration.server import Ready

        end = time.monotonic() + _START_S
        while self._server.code is None and not self._interrupt.wanted:
            for message in self._server.messages(_LOOK_S):
                if isinstance(message, Ready):
                    return message.url
            if time.monotonic() > end:
                click.echo(
                    f"inflight: the server was not ready within {_START_S:g} s; see what it says above.", err=True
                )
                return None
        return None

    def run(self, url: str) -> int:
        from inflight.cli.demonstration.traffic import begin

        stop = threading.Event()
        traffic = begin(url, stop)
        begun = time.monotonic()
        try:
            while self._goes_on(begun, traffic):
                self._tell(begun, wait=_LOOK_S)
        finally:
            stop.set()
        for one in traffic:
            one.join()
        self._tell(begun, wait=0.0)
        if self._server.code is not None:
            click.echo(f"inflight: the server ended with code {self._server.code}; it says why above.", err=True)
            return 1
        if fault := next((one.fault for one in traffic if one.fault is not None), None):
            click.echo(f"inflight: the traffic ended: {fault}", err=True)
            return 1
        self._sum_up([one.measured for one in traffic if one.measured is not None], time.monotonic() - begun)
        return 0

    def _goes_on(self, begun: float, traffic: Sequence[Traffic]) -> bool:
        over = self._seconds is not None and time.monotonic() - begun >= self._seconds
        ended = self._server.code is not None or any(not one.is_alive() for one in traffic)
        return not (self._interrupt.wanted or over or ended)

    def _tell(self, begun: float, wait: float) -> None:
        from inflight.cli.demonstration.narrator import Sentence
        from inflight.cli.demonstration.server import Counted

        for message in self._server.messages(wait):
            if isinstance(message, Counted):
                self._seen = message.seen
            elif isinstance(message, Sentence):
                _print(f"{time.monotonic() - begun:5.0f} s  {message.kind}", message.text)

    def _sum_up(self, measured: Sequence[Measured], seconds: float) -> None:
        from inflight.cli.demonstration.narrator import KINDS

        click.echo("")
        if not measured:
            click.echo("It ended before the first request was sent.")
            return
        rate = sum(one.summary.output_tokens_per_s for one in measured)
        click.echo(f"After {duration(seconds)}: {rate:,.0f} output tokens/s. Time to the first token:")
        lanes = [(lane, one.by_lane[lane]) for one in measured for lane in one.by_lane]
        for lane, summary in lanes:
            click.echo(f"  {lane:<12} {summary.requests:>5,} answers   {_shown(summary.ttft)}")
        seen = ", ".join(f"{self._seen.get(kind, 0):,} × {kind}" for kind in KINDS)
        click.echo(f"Seen: {seen}.")
        missing = [kind for kind in KINDS if not self._seen.get(kind, 0)]
        if missing and seconds < _ENOUGH_S:
            click.echo(f"Not seen yet: {' and '.join(missing)}; let it run for a minute.")


def _begin(url: str, full_speed: bool, *, opened: bool, wanted: bool) -> None:
    from inflight.cli.demonstration.server import BLOCKS, PACE, ROWS, STEP_TOKENS

    where = "is open in your browser" if opened else "is for your browser"
    click.echo(f"{url} {where}." + (" None could be opened from here." if wanted and not opened else ""))
    slowed = (
        "Steps take what they take here."
        if full_speed
        else f"Steps are slowed to {PACE.step * 1e3:g} ms and {PACE.token * 1e3:g} ms a token, as a larger model's, so "
        "that eyes can follow; --full-speed does not."
    )
    _paragraph(f"An engine of {ROWS} rows, {BLOCKS} KV blocks of 16 tokens and {STEP_TOKENS} tokens a step. {slowed}")
    click.echo("")
    click.echo("What to look for:")
    for kind, text in _LOOK_FOR.items():
        _print(f"  {kind}", text)
    click.echo("")
    click.echo("As it happens (Ctrl-C ends it):")


_LOOK_FOR = {
    "chunked prefill": "in the picture of the batch a row of tall bars, a piece of a long prompt in each; the low bars "
    "of other rows go on below and above it.",
    "batch lane": "under Queues batch waits, and says for what, as soon as interactive has more to do.",
    "preemption": "a batch row breaks off where a long prompt begins, and comes back hatched: computed again.",
}


def _open(url: str) -> bool:
    """Whether there was a browser to open it; one that would take this terminal for itself is none."""
    import webbrowser

    has_screen = sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS)
    with contextlib.suppress(webbrowser.Error, OSError):
        return has_screen and webbrowser.open(url)
    return False


def _shown(ttft: Percentiles) -> str:
    if ttft.p50 is None or ttft.p95 is None:
        return "none came to its end"
    return f"p50 {ttft.p50 * 1e3:>7,.0f} ms   p95 {ttft.p95 * 1e3:>7,.0f} ms"


def _print(head: str, text: str) -> None:
    """The head in its column, the text beside it."""
    import textwrap

    column = 26
    lines = textwrap.wrap(text, _WIDTH - column)
    for place, line in enumerate(lines):
        click.echo(f"{head if not place else '':<{column}}{line}")


def _paragraph(text: str) -> None:
    import textwrap

    lines: Iterable[str] = textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
    for line in lines:
        click.echo(line)
