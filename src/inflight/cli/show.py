"""`inflight show`: describe models on this machine before they are loaded. Fetches nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.cli.declared import settings_options
from inflight.cli.list import show_table
from inflight.cli.options import complete_local_model, in_download_dir
from inflight.cli.verb import Verb
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads

if TYPE_CHECKING:
    from inflight.execution.checkpoints.local_models import LocalModel
    from inflight.execution.model_card import ModelCard
    from inflight.execution.roofline import Machine

_COLUMNS = ("model", "family", "format", "parameters", "on disk", "in memory", "tokens/s at 1", "at 8")


@click.command("show", cls=Verb)
@click.argument("models", nargs=-1, metavar="[MODEL]...", shell_complete=complete_local_model)
@settings_options(EngineSettings, only=("quantization", "threads"))
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@in_download_dir
def command(models: Sequence[str], as_json: bool, **engine: Any) -> None:
    """Describe each MODEL (a folder, a .gguf file, or a name or hub id that is cached): family, parameters, context,
    template, licence, files, and the memory that it needs here. Without any, list the families that run."""
    settings = EngineSettings(**engine)
    if not models:
        print(json.dumps({"families": families()}) if as_json else families_text())
        return
    located = [located_model(one) for one in models]
    cards, _ = described([(name, path) for name, path, _ in located], settings, must=True, with_speed=as_json)
    if as_json:
        print(json.dumps({"models": [card_json(one) for one in cards]}))
        return
    for number, (card, (_, path, local)) in enumerate(zip(cards, located, strict=True)):
        print("\n" * (number > 0) + "\n".join(f"{name:<12}{value}" for name, value in _details(card, path, local)))


def families() -> dict[str, list[str]]:
    """Return the families that run, with their architectures."""
    from inflight.models.registry import families_naming

    return {one.name: list(one.architectures) for one in families_naming("") if one.runs}


def families_text() -> str:
    lines = [f"{name:<12} {', '.join(names)}" for name, names in families().items()]
    return "Families that run (docs/models.md says what was checked of each):\n  " + "\n  ".join(lines)


def located_model(model: str) -> tuple[str, Path, LocalModel | None]:
    """Return a model's name and path, and its entry in a cache. Raises ModelError for one that is not here."""
    from inflight.execution.checkpoints.hub import resolve_model
    from inflight.execution.checkpoints.local_models import find_model

    if Path(model).expanduser().exists():
        return model, resolve_model(model), None
    found = find_model(model)
    return found.name, found.path, found


def _details(card: ModelCard, path: Path, local: LocalModel | None) -> list[tuple[str, str]]:
    from inflight.build import has_chat_template
    from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
    from inflight.models.gguf.choosing import quantization_of
    from inflight.models.gguf.gguf_model import gguf_at

    gguf = gguf_at(path)
    said = gguf.metadata.text("general.license") if gguf is not None and "general.license" in gguf.metadata else None
    packaged = CATALOGUE.get(card.name)
    files = local.files if local is not None else tuple(sorted(path.iterdir())) if path.is_dir() else (path,)
    active = f" ({_millions(card.active_parameters)} active)" if card.active_parameters < card.parameters else ""
    lines = [
        ("model", card.name),
        ("family", card.family),
        ("parameters", _millions(card.parameters) + active),
        ("context", f"{card.max_model_len:,} tokens"),
        ("format", card.format + (f", {quantization_of(path.name)}" if gguf is not None else "")),
        ("template", "chat" if has_chat_template(EngineSettings(model=str(path))) else "none, so it cannot chat"),
        ("licence", packaged.license if packaged is not None else said or "its files do not say"),
        ("memory", _memory(card)),
        ("path", str(path)),
        ("files", ", ".join(_file(one, path) for one in files if one.is_file())),
    ]
    if local is not None and local.digest:
        lines.append(("digest", f"sha256:{local.digest}"))
    return lines + ([("does not run", card.refusal)] if card.refusal is not None else [])


def _file(path: Path, folder: Path) -> str:
    """Return a file's name, below the model's folder where it is in that, and its size where it is large."""
    from inflight.execution.checkpoints.pull_progress import megabytes

    nbytes, name = path.stat().st_size, path.name
    if path != folder and path.is_relative_to(folder):
        name = str(path.relative_to(folder))
    return f"{name} ({megabytes(nbytes)})" if nbytes >= 10**6 else name


def _memory(card: ModelCard) -> str:
    """Return the memory that a model needs, and whether this machine has it."""
    from inflight.execution.checkpoints.fitting import TOKENS, default_memory
    from inflight.execution.memory import gib

    if not card.file_bytes:
        return f"no weights here; they would take {gib(card.weight_bytes)}"
    tokens, memory = min(TOKENS, card.max_model_len), default_memory()
    needed = card.weight_bytes + tokens * card.kv_bytes_per_token
    fits = f"{'fits' if needed <= memory.total else 'does not fit'} ({gib(memory.total)} of {memory.limited_by})"
    return f"{gib(card.weight_bytes)} for weights, {gib(needed)} with {tokens:,} tokens: {fits}"


def described(
    located: Sequence[tuple[str, Path]], settings: EngineSettings, must: bool, with_speed: bool = True
) -> tuple[list[ModelCard], dict[str, str]]:
    """Describe models.

    Args:
        located: Names and paths.
        settings: Of the engine.
        must: Raise for one that cannot be described; else it is in the second result, with why.
        with_speed: Measure this machine for a second.

    Raises:
        ModelError: As `must` says.
    """
    from inflight.execution.model_card import model_card
    from inflight.models.errors import ModelError

    measured = cache(lambda: _measured(settings)) if with_speed else None
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


def print_cards(cards: Sequence[ModelCard]) -> None:
    """Print models as a table, and below it what keeps one from running."""
    if not cards:
        return
    show_table([_COLUMNS, *(_row(card) for card in cards)])
    from inflight.execution.memory import gib, machine_memory

    for card in cards:
        if card.refusal is not None:
            print(f"\n{card.name} does not run: {card.refusal}")
        elif not fits(card):
            needed, total = gib(card.weight_bytes), gib(machine_memory().total)
            print(f"\n{card.name} does not fit: its weights take {needed} of memory, and this machine has {total}.")


def fits(card: ModelCard) -> bool:
    """Return whether this machine's memory holds a model's weights."""
    from inflight.execution.memory import machine_memory

    return card.weight_bytes <= machine_memory().total


def card_json(card: ModelCard) -> dict[str, Any]:
    """Return a model as JSON has it; one that does not fit has no speed."""
    found = {**asdict(card), "fits": fits(card)}
    return found if found["fits"] else {**found, "tokens_per_s": {}}


def _row(card: ModelCard) -> tuple[str, ...]:
    from inflight.execution.memory import gib

    speeds = [f"{speed:,.{0 if speed >= 10 else 1}f}" for speed in card.tokens_per_s.values()] if fits(card) else []
    none = ["–", "–"] if fits(card) else ["does not fit", ""]
    active = f" ({_millions(card.active_parameters)} active)" if card.active_parameters < card.parameters else ""
    return (
        card.name,
        card.family,
        card.format,
        f"{_millions(card.parameters)}{active}",
        gib(card.file_bytes) if card.file_bytes else "no weights",
        gib(card.weight_bytes),
        *(speeds or none),
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:,.{0 if count >= 10**7 else 1}f} M"
