"""`inflight report`: figures, pictures and a diagnosis from step records and bench results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from inflight.cli.declared import takes
from inflight.cli.files import check_writable
from inflight.cli.summary import show
from inflight.cli.verb import Verb
from inflight.config.setting import Bound, setting
from inflight.counted import printable
from inflight.records.json_text import json_text

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Forms of the report."""

    html: Path | None = setting(None, "Write a page with pictures here.", "Options", path="file")
    as_json: bool = setting(False, "Print figures and findings as JSON.", flags=("--json",))
    title: str | None = setting(None, "Title of the page; by default the files' names.")
    live: bool = setting(False, "Play the records on the live page, side by side; with --html, as one file.")
    port: int | None = setting(
        None,
        "Port of the page that --live shows; a free one unless set.",
        bound=Bound(0, 65535, "a number from 1 to 65535, or 0 for a free one"),
    )


@click.command("report", cls=Verb)
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@takes(asked=ReportOptions)
def command(files: tuple[Path, ...], asked: ReportOptions) -> int:
    """Report on FILEs side by side: step records (--record of run and serve) and results (--output of bench).

    Figures and diagnosis go to standard output. The others are compared with the first file.
    """
    check_writable(asked.html, reads=files)
    if asked.live:
        return _play(files, asked)
    if asked.port is not None:
        raise click.UsageError(f"--port {asked.port} has no effect without --live, which shows the page there.")

    # Imported only now, so that errors above are reported at once.
    from inflight.report.page import render
    from inflight.report.reading import read_sources
    from inflight.report.result import as_json, as_text
    from inflight.report.run import Report

    settings = read_sources(files)
    report = Report(asked.title or f"Report: {' · '.join(one.name for one in settings)}", settings)
    if asked.html is not None:
        asked.html.write_text(render(report), encoding="utf-8")
        show(f"{asked.html} is written: {asked.html.stat().st_size / 1e3:,.0f} kB; open it in a browser.")
    if asked.as_json:
        print(json_text(as_json(report), indent=2))
    else:
        print(printable(as_text(report), keep="\n"), end="")
    return 0


def _play(files: tuple[Path, ...], asked: ReportOptions) -> int:
    from inflight.cli.live_replay import MAX_BESIDE, replays_of, serve_replays, write_page

    if asked.as_json:
        raise click.UsageError(
            "--json has no effect with --live, which plays records and prints no figures; leave it out."
        )
    if len(files) > MAX_BESIDE:
        raise click.UsageError(f"{len(files)} files do not fit side by side; give at most {MAX_BESIDE}.")
    if asked.html is not None and asked.port is not None:
        raise click.UsageError("--html writes the page, and --port serves it; give one of them.")
    replays = replays_of(files)
    if asked.html is None:
        return serve_replays(replays, asked.port or 0)
    write_page(asked.html, replays, asked.title or "")
    return 0
