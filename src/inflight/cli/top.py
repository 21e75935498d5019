"""`inflight top`: the live page's numbers and batch in a terminal."""

from __future__ import annotations

import sys
from typing import Any

import click

from inflight.cli.verb import Verb


@click.command("top", cls=Verb)
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--api-key", help="An operator's key shows everything, a tenant's its own.")
def command(url: str, **values: Any) -> int:
    """Watch the server at URL: its batch, KV memory, queues and latencies. q ends it, Space pauses.

    When standard output is no terminal, the state is printed once.
    """
    # Imported only now, so that errors above are reported at once.
    from inflight.live.terminal.feed import FeedReader
    from inflight.live.terminal.screen import look_once, watch

    reader = FeedReader(url, values["api_key"])
    if sys.stdout.isatty() and sys.stdin.isatty():
        return watch(reader)
    return look_once(reader)
