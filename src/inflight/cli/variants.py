"""Read what is compared: `--setting NAME=OPTIONS`, over the options of the verb, and `--serve NAME=OPTIONS`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from inflight.cli.options import engine_settings, measured_engine_options, scheduling_options, scheduling_settings
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError

# Batching strategies as servers have or had them.
FIELD = (
    "static, 4 rows=--strategy static --batch-size 4 --max-num-seqs 4",
    "static, 32 rows=--strategy static --batch-size 32",
    "dynamic=--strategy dynamic --batch-size 32",
    "continuous=--strategy continuous",
    "chunked=--strategy chunked",
    "adaptive=--strategy adaptive --itl-target 0.1",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine's settings to compare. options: as they were written."""

    name: str
    options: str
    engine: EngineSettings
    scheduling: SchedulingSettings


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """A server to start. words: arguments of `inflight serve`."""

    name: str
    words: tuple[str, ...]


@click.command("setting", add_help_option=False)
@measured_engine_options
@scheduling_options
def _setting(**values: Any) -> tuple[EngineSettings, SchedulingSettings]:
    return engine_settings(values), scheduling_settings(values)


def read_variants(texts: Sequence[str]) -> list[Variant]:
    """Read settings of engines. Options of the engine and of scheduling that the verb was given hold for all."""
    return [_read_one(text) for text in texts]


def read_served(texts: Sequence[str]) -> list[ServedVariant]:
    """Put options that hold for all before those of each server, which win."""
    verb = click.get_current_context(silent=True)
    for_all = _as_words(_given(verb, _setting)) if verb else []
    return [ServedVariant(name, (*for_all, *words)) for name, words in map(_read_served, texts)]


def _read_served(text: str) -> tuple[str, list[str]]:
    name, arguments, _ = _named_words("--serve", "two=--replicas 2", text)
    for one in arguments:
        if one.partition("=")[0] in ("--host", "--port"):
            raise click.UsageError(f"--serve {name!r} has {one}, but compare chooses the address; leave it out.")
    return name, arguments


def _named_words(option: str, example: str, text: str) -> tuple[str, list[str], str]:
    name, separator, options = text.partition("=")
    name = name.strip()
    if not separator or not name:
        raise click.UsageError(f"{option} is {text!r}; write NAME=OPTIONS, such as '{example}'.")
    try:
        return name, shlex.split(options), options
    except ValueError as error:
        raise click.UsageError(f"{option} {name!r} cannot be read: {error}; look for a quote that is open.") from None


def _as_words(values: Mapping[str, Any]) -> list[str]:
    """Return values as words of the command line."""
    words: list[str] = []
    for parameter in _setting.params:
        value = values.get(str(parameter.name))
        if value is None:
            continue
        if isinstance(parameter, click.Option) and parameter.is_flag:
            given = bool(value) is (parameter.flag_value is not False)  # --no-prefix-caching stands for False
            words += parameter.opts[:1] if given else parameter.secondary_opts[:1]
            continue
        for one in value if parameter.multiple else (value,):
            words += [parameter.opts[0], str(one)]
    return words


def _read_one(text: str) -> Variant:
    name, options, (engine, scheduling) = read_named(_setting, "--setting", "small steps=--max-num-seqs 8", text)
    return Variant(name, options, engine, scheduling)


def read_named(command: click.Command, option: str, example: str, text: str) -> tuple[str, str, Any]:
    """Read NAME=OPTIONS over the options of the verb.

    Args:
        command: Has the options that may be given, and returns what is made of them.
        option: Its name in errors.
        example: A text in this form.
        text: As the user wrote it.

    Returns:
        The name, the options as written, and the command's answer.

    Raises:
        click.UsageError: The text is not in this form, or its options are wrong.
    """
    name, words, options = _named_words(option, example, text)
    verb = click.get_current_context(silent=True)
    try:
        context = command.make_context(name, words, parent=verb, default_map=_given(verb, command) if verb else {})
        with context:
            made = command.invoke(context)
    except (click.UsageError, SettingsError) as error:
        sentence = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise click.UsageError(f"{option} {name!r}: {sentence}") from None
    return name, options.strip(), made


def _given(verb: click.Context, command: click.Command) -> dict[str, Any]:
    """Return the options for all settings: of a configuration file, a preset, the environment, the command line."""
    names = {parameter.name for parameter in command.params}
    given = {name: value for name, value in (verb.default_map or {}).items() if name in names}
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    typed = [name for name in names if verb.get_parameter_source(str(name)) in sources]
    return given | {name: verb.params[name] for name in typed if name in verb.params}
