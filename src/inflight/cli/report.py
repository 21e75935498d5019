"""`inflight report`: figures, pictures and a diagnosis from step records and bench results."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from inflight.cli.declared import SettingOption
from inflight.cli.files import check_writable
from inflight.cli.verb import Verb
from inflight.counted import printable
from inflight.records.json_text import json_text

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("report", cls=Verb)
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with pictures here.")
@click.option("--json", "as_data", is_flag=True, help="Print figures and findings as JSON.")
@click.option("--title", help="Of the page; without it the files' names.")
@click.option("--live", is_flag=True, help="Play the records on the live page, side by side; with --html, as one file.")
@click.option("--port", cls=SettingOption, type=int, help="Of the page that --live shows; a free one unless given.")
def command(
    files: tuple[Path, ...], html: Path | None, as_data: bool, title: str | None, live: bool, port: int | None
) -> int:
    """Report on FILEs side by side: step records (--record of run and serve) and results (--output of bench).

    Figures and diagnosis go to standard output. The first file is what the others are compared with.
    """
    check_writable(html, reads=files)
    if live:
        return _play(files, html, as_data, title, port)
    if port is not None:
        raise click.UsageError(f"--port {port} has no effect without --live, which shows the page there.")

    # Loaded only now, so that errors above are reported at once.
    from inflight.report.page import render
    from inflight.report.reading import read_sources
    from inflight.report.result import as_json, as_text
    from inflight.report.run import Report

    settings = read_sources(files)
    report = Report(title or " · ".join(setting.name for setting in settings), settings)
    if html is not None:
        html.write_text(render(report), encoding="utf-8")
        print(f"{html} is written: {html.stat().st_size / 1e3:,.0f} kB; open it in a browser.", file=sys.stderr)
    if as_data:
        print(json_text(as_json(report), indent=2))
    else:
        print(printable(as_text(report), keep="\n"), end="")
    return 0


def _play(files: tuple[Path, ...], html: Path | None, as_data: bool, title: str | None, port: int | None) -> int:
    from inflight.cli.live_replay import MOST_BESIDE, replays_of, serve_replays, write_page

    if as_data:
        raise click.UsageError(
            "--json has no effect with --live, which plays records and prints no figures; leave it out."
        )
    if len(files) > MOST_BESIDE:
        raise click.UsageError(f"{len(files)} files do not fit side by side; give at most {MOST_BESIDE}.")
    if html is not None and port is not None:
        raise click.UsageError("--html writes the page, and --port serves it; give one of them.")
    if port is not None and not 0 <= port < 65536:
        raise click.UsageError(f"--port is {port}; give a number from 1 to 65535, or 0 for a free one.")
    replays = replays_of(files)
    if html is None:
        return serve_replays(replays, port or 0)
    write_page(html, replays, title or "")
    return 0
