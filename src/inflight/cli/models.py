"""`inflight models`: the older name of `list` and `show`, with the speed that this machine allows. Fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from inflight.cli.declared import settings_options
from inflight.cli.options import complete_local_model, in_download_dir
from inflight.cli.show import card_json, described, families, families_text, located_model, print_cards
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.counted import counted


@click.command("models", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_local_model)
@settings_options(EngineSettings, only=("quantization", "threads"))
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@in_download_dir
def command(models: Sequence[str], as_json: bool, **engine: Any) -> None:
    """Compare models on this machine: of each MODEL (a folder, a .gguf file, or a name or hub id that is cached) its
    family, memory and tokens/s at best; without any, of all in the caches, with the families that run."""
    from inflight.execution.checkpoints.local_models import local_models

    located = [located_model(one)[:2] for one in models] or [(one.name, one.path) for one in local_models()]
    cards, refused = described(located, EngineSettings(**engine), must=bool(models))
    if as_json:
        found = {"families": families(), "models": [card_json(one) for one in cards], "refused": refused}
        print(json.dumps(found if not models else {"models": found["models"]}))
        return
    if not models:
        print(families_text())
        print(f"\nIn the caches of `inflight pull` and of the hub: {counted(len(located), 'model')}")
    print_cards(cards)
    for name, why in refused.items():
        print(f"{name}: {why}")
