"""`inflight models`: list families that run, describe folders and files, and models in the caches. Fetches nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import settings_options
from inflight.cli.options import complete_model
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads
from inflight.counted import counted

if TYPE_CHECKING:
    from inflight.execution.model_card import ModelCard
    from inflight.execution.roofline import Machine

_COLUMNS = ("model", "family", "format", "parameters", "on disk", "in memory", "tokens/s at 1", "at 8")


@click.command("models", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_model)
@settings_options(EngineSettings, only=("quantization", "threads"))
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def command(models: Sequence[str], as_json: bool, **engine: Any) -> None:
    """Say what each MODEL (a folder, a .gguf file, or a name or hub id that is cached) is, what memory it needs here
    and how fast it can be at best; without any, which families run and what the caches of pull and of the hub hold."""
    settings = EngineSettings(**engine)
    located = [_located(one) for one in models] if models else list(_cached())
    cards, refused = _cards(located, settings, bool(models))
    if as_json:
        found = {"families": _families(), "models": [asdict(one) for one in cards], "refused": refused}
        print(json.dumps(found if not models else {"models": found["models"]}))
        return
    if not models:
        print("Families that run (docs/models.md says what was checked of each):")
        print("  " + "\n  ".join(f"{name:<12} {', '.join(names)}" for name, names in _families().items()))
        print(f"\nIn the caches of `inflight pull` and of the hub: {counted(len(located), 'model')}")
    _print(cards)
    for name, why in refused.items():
        print(f"{name}: {why}")


def _families() -> dict[str, list[str]]:
    from inflight.models.registry import families_naming

    return {one.name: list(one.architectures) for one in families_naming("") if one.runs}


def _located(model: str) -> tuple[str, Path]:
    """Return a model's name and path. Raises ModelError for a model that is not on this machine."""
    from inflight.execution.checkpoints.hub import resolve_model
    from inflight.models.errors import ModelError

    if Path(model).expanduser().exists():
        return model, resolve_model(model)
    cached = dict(_cached())
    if model not in cached:
        raise ModelError(
            f"{model} is neither a folder or file here nor in the caches of `inflight pull` and of the hub, which hold "
            f"{counted(len(cached), 'model')}; `inflight pull {model}` fetches it."
        )
    return model, cached[model]


def _cached() -> Iterable[tuple[str, Path]]:
    """Yield the models that were pulled by name, and of each in the hub's cache the newest revision."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
    from inflight.execution.checkpoints.packaged.model_cache import cached

    for name, model in CATALOGUE.items():
        if (path := cached(model)) is not None:
            yield name, path
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repository in sorted(found, key=lambda one: one.repo_id):
        if repository.repo_type == "model" and repository.revisions:
            yield repository.repo_id, max(repository.revisions, key=lambda one: one.last_modified).snapshot_path


def _cards(
    located: Sequence[tuple[str, Path]], settings: EngineSettings, must: bool
) -> tuple[list[ModelCard], dict[str, str]]:
    """Describe models. must: raise for one that cannot be described; else it is in the second result, with why."""
    from inflight.execution.model_card import model_card
    from inflight.models.errors import ModelError

    measured = cache(lambda: _measured(settings))
    cards, refused = [], {}
    for name, path in located:
        try:
            cards.append(model_card(path, name, measured, settings.quantization))
        except ModelError as error:
            if must:
                raise
            refused[name] = str(error)
    return cards, refused


def _measured(settings: EngineSettings) -> Machine:
    from inflight.execution.backends import native
    from inflight.execution.roofline import Machine

    threads = int(resolve_threads(settings).value)
    print("Measuring this machine for a second ...", file=sys.stderr)
    peaks = {"bfloat16": native.peak_flops("bf16", threads), "int8": native.peak_flops("int8", threads)}
    return Machine(native.read_bandwidth_bytes_per_s(threads), peaks)


def _print(cards: Sequence[ModelCard]) -> None:
    if not cards:
        return
    rows = [_COLUMNS, *(_row(card) for card in cards)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    from inflight.execution.memory import gib, machine_memory

    for card in cards:
        if card.refusal is not None:
            print(f"\n{card.name} does not run: {card.refusal}")
        elif card.weight_bytes > machine_memory().total:
            needed, total = gib(card.weight_bytes), gib(machine_memory().total)
            print(f"\n{card.name} does not fit: its weights take {needed} of memory, and this machine has {total}.")


def _row(card: ModelCard) -> tuple[str, ...]:
    from inflight.execution.memory import gib, machine_memory

    fits = card.weight_bytes <= machine_memory().total
    speeds = [f"{speed:,.{0 if speed >= 10 else 1}f}" for speed in card.tokens_per_s.values()] if fits else []
    active = f" ({_millions(card.active_parameters)} active)" if card.active_parameters < card.parameters else ""
    return (
        card.name,
        card.family,
        card.format,
        f"{_millions(card.parameters)}{active}",
        gib(card.file_bytes) if card.file_bytes else "no weights",
        gib(card.weight_bytes),
        *(speeds or ["–", "–"]),
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:,.{0 if count >= 10**7 else 1}f} M"
