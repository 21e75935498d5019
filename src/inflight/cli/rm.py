"""`inflight rm`: delete models from the caches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inflight.cli.options import complete_local_model, in_download_dir
from inflight.cli.summary import show
from inflight.cli.verb import Verb

if TYPE_CHECKING:
    from inflight.execution.checkpoints.local_models import Unfinished


@click.command("rm", cls=Verb)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", shell_complete=complete_local_model)
@click.option("--yes", is_flag=True, help="Do not ask.")
@in_download_dir
def command(models: Sequence[str], yes: bool) -> int:
    """Delete each MODEL that was pulled. Files and folders of your own are never deleted."""
    from inflight.execution.checkpoints.local_models import delete_model, delete_unfinished, find_model
    from inflight.execution.checkpoints.pull_progress import megabytes
    from inflight.launch.running_servers import servers_of
    from inflight.models.errors import ModelError

    for name in models:
        if (path := Path(name).expanduser()).exists():
            raise ModelError(f"{path} is a file or folder of your own, which rm leaves alone; delete it yourself.")
        if (left := _unfinished(name)) is not None:
            show(f"{name}: deleted what was half pulled, {megabytes(delete_unfinished(left))}.")
            continue
        model = find_model(name)
        if servers := servers_of(model):
            raise ModelError(
                f"{model.name} is in use by the server at {servers[0].url} (process {servers[0].pid}); "
                f"`inflight stop {model.name}` ends that."
            )
        question = f"Delete {model.name} ({megabytes(model.nbytes)})?"
        if not yes and sys.stdin is not None and sys.stdin.isatty() and not click.confirm(question, err=True):
            show(f"{model.name} stays.")
            return 1
        show(f"{model.name}: deleted, {megabytes(delete_model(model))} freed.")
    return 0


def _unfinished(name: str) -> Unfinished | None:
    """Return the interrupted download of a repository of which nothing else is here; None where there is none."""
    from inflight.execution.checkpoints.local_models import local_models, unfinished_downloads

    repository = name.partition(":")[0]
    if any(one.name.partition(":")[0] == repository for one in local_models()):
        return None
    return next((one for one in unfinished_downloads() if one.repository == repository), None)
