"""Read the contenders of a lab: policies, strategies and predictors by name, from files and folders, and settings.

A file is imported under a name of its own, so that `random.py` in a folder of policies stays what it is elsewhere, too.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from inflight.cli.options import scheduling_options, scheduling_settings
from inflight.cli.variants import read_named
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.estimation.registry import PREDICTORS
from inflight.core.policies.registry import POLICIES
from inflight.core.strategies.registry import STRATEGIES
from inflight.counted import did_you_mean

BASELINE = "fcfs"
_KINDS: dict[str, Mapping[str, object]] = {"policy": POLICIES, "strategy": STRATEGIES, "predictor": PREDICTORS}
_METHODS = {"rank": "policy", "shape": "strategy", "predict": "predictor"}  # the method that each kind must have


@dataclass(frozen=True, slots=True)
class Contender:
    """Scheduling settings to compare. options: how they differ from those of the verb, as options are written."""

    name: str
    options: str
    scheduling: SchedulingSettings


def read_contenders(names: Sequence[str], common: SchedulingSettings) -> list[Contender]:
    """Read contenders by the verb's arguments; without any, all policies that there are.

    Args:
        names: Of policies, strategies and predictors; Python files and folders of them; `package.module:Class`.
        common: Settings of all of them.

    Raises:
        click.UsageError: A name is unknown, or a file has no class that could contend.
    """
    found: list[Contender] = []
    for name in names or tuple(POLICIES):
        for label, kind, value, shown in _found(name):
            given = {kind: value} if kind != "predictor" else {"policy": "sjf", kind: value}  # which asks a predictor
            try:
                settings = common.but(**given)
            except SettingsError as error:
                raise click.UsageError(f"{name}: {error}") from None
            options = " ".join(f"--{key} {shown if key == kind else word}" for key, word in given.items())
            found.append(Contender(label, options, settings))
    return found


def read_settings(texts: Sequence[str]) -> list[Contender]:
    """Read `--setting NAME=OPTIONS`, over the options of the verb. Raises click.UsageError."""
    return [Contender(*read_named(_setting, "--setting", "aged=--policy priority", text)) for text in texts]


def with_baseline(contenders: Iterable[Contender], common: SchedulingSettings) -> list[Contender]:
    """Return the contenders behind first come, first served, which all are compared with. Raises click.UsageError
    for two of one name."""
    found = list(contenders)
    if not any(one.name == BASELINE for one in found):
        found.insert(0, Contender(BASELINE, f"--policy {BASELINE}", common.but(policy=BASELINE)))
    found.sort(key=lambda one: one.name != BASELINE)
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"{names.count(name)} contenders have the name {name!r}; give each its own.")
    return found


_Found = tuple[str, str, str, str]  # label, kind, the setting's value, and the value as it is shown


def _found(name: str) -> Iterator[_Found]:
    """Yield each contender that a name stands for. Raises click.UsageError."""
    path = Path(name)
    if path.is_dir():
        files = sorted(one for one in path.glob("*.py") if not one.name.startswith("_"))
        classes = [found for one in files for found in _classes(one)]
        if not classes:
            raise click.UsageError(
                f"{name} has {len(files)} Python files and no policy, strategy or predictor in them."
            )
        yield from classes
    elif path.suffix == ".py":
        if not path.is_file():
            raise click.UsageError(f"{name} is no file; give a Python file, a folder of them, or a policy by its name.")
        if not (classes := list(_classes(path))):
            methods = ", ".join(f"{method} ({kind})" for method, kind in _METHODS.items())
            raise click.UsageError(f"{name} has no class with one of the methods {methods}.")
        yield from classes
    elif ":" in name:
        yield from _of_path(name)
    else:
        kind = next((kind for kind, registry in _KINDS.items() if name in registry), None)
        if kind is None:
            known = [known for registry in _KINDS.values() for known in registry]
            hint = did_you_mean(name, known) or f" Known are: {', '.join(known)}."
            raise click.UsageError(f"{name!r} is no policy, strategy, predictor, Python file or folder.{hint}")
        yield name, kind, name, name


def _of_path(path: str) -> Iterator[_Found]:
    module, _, attribute = path.partition(":")
    try:
        kind = _kind_of(getattr(importlib.import_module(module), attribute))
    except Exception as error:  # whatever a plugin's code raises
        raise click.UsageError(
            f"{path} cannot be loaded ({type(error).__name__}: {error}); write package.module:Class, with the package "
            "on PYTHONPATH, or name its file."
        ) from None
    if kind is None:
        raise click.UsageError(f"{path} has none of the methods {', '.join(_METHODS)}, so that it cannot contend.")
    yield attribute, kind, path, path


def _classes(path: Path) -> Iterator[_Found]:
    """Yield the classes that a file defines, its helpers without one of the methods left out."""
    module = _imported(path)
    for attribute, found in vars(module).items():
        if isinstance(found, type) and found.__module__ == module.__name__ and not attribute.startswith("_"):
            kind = _kind_of(found)
            if kind is not None:
                label = str(getattr(found, "name", attribute))
                yield label, kind, f"{module.__name__}:{attribute}", f"{path}:{attribute}"


def _kind_of(found: Any) -> str | None:
    return next((kind for method, kind in _METHODS.items() if callable(getattr(found, method, None))), None)


def _imported(path: Path) -> ModuleType:
    """Import a file. Raises click.UsageError, for whatever its code raises."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    name = f"inflight_lab_{place}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a plugin of this path is looked for
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise click.UsageError(f"{path} cannot be imported ({type(error).__name__}: {error}).") from None
    return module


@click.command("setting", add_help_option=False)
@scheduling_options
def _setting(**values: Any) -> SchedulingSettings:
    return scheduling_settings(values)
