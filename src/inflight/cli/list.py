"""`inflight list`: the models in the caches, and those in folders. Fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from inflight.cli.options import in_download_dir
from inflight.cli.progress import ago
from inflight.cli.verb import Verb
from inflight.counted import printable

_COLUMNS = ("NAME", "SIZE", "QUANTIZATION", "MODIFIED", "SERVED AT")


@click.command("list", cls=Verb)
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object.")
@in_download_dir
def command(folders: Sequence[Path], as_json: bool) -> None:
    """List the models on this machine: those that were pulled, those in the hub's cache, and those in each FOLDER."""
    from inflight.execution.checkpoints.local_models import local_models, models_below, unfinished_downloads
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
    from inflight.execution.checkpoints.pull_progress import megabytes
    from inflight.launch.running_servers import servers_of

    models = local_models()
    served = {one.name: ", ".join(server.url for server in servers_of(one)) for one in models}
    below = [(str(folder / name), path) for folder in folders for name, path in models_below(folder)]
    if as_json:
        found = [{**msgspec.to_builtins(one, enc_hook=str), "served_at": served[one.name]} for one in models]
        print(json.dumps({"models": found, "in_folders": [name for name, _ in below]}))
        return
    rows = [_COLUMNS]
    for one in models:
        came = ago(one.modified)
        rows.append((one.name, megabytes(one.nbytes), one.quantization or "–", came, served[one.name] or "–"))
    for name, path in below:
        nbytes = sum(one.stat().st_size for one in ([path] if path.is_file() else path.glob("*.safetensors")))
        rows.append((name, megabytes(nbytes), "–", ago(path.stat().st_mtime), "–"))
    show_table(rows)
    for left in unfinished_downloads():
        here = megabytes(left.nbytes)
        print(f"{left.repository}: half pulled, {here} so far; `inflight pull {left.repository}` goes on.")
    if absent := [one for one in CATALOGUE.values() if one.name not in served]:
        names = ", ".join(f"{one.name} ({megabytes(one.download_bytes)})" for one in absent)
        print(f"`inflight pull NAME` fetches others: {names}, or owner/name of the hub.")


def show_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, the first as heads."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(printable("   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()))
