"""Options of strategies: declared once where they are defined, known wherever users set them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from inflight.cli.serve import command as serve
from inflight.cli.simulate import command as simulate
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.core.estimation.registry import PREDICTORS
from inflight.core.options import BadOption, OptionValues, count, seconds
from inflight.core.strategies.registry import OPTIONS, STRATEGIES
from inflight.routing.registry import OPTIONS as ROUTER_OPTIONS
from inflight.routing.registry import ROUTERS

DOCS = Path(__file__).parents[2] / "docs" / "strategies.md"
ENTRIES = [  # of registries that the command line shows by name
    (serve, "--predictor", PREDICTORS),
    (simulate, "--predictor", PREDICTORS),
    (simulate, "--router", ROUTERS),
]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_known_to_the_command_line_the_settings_and_the_documentation(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    assert option_of(serve, flag).help == OPTIONS[name].help
    assert name in SCHEDULING_NAMES
    assert flag in DOCS.read_text(encoding="utf-8")


def option_of(verb: click.Command, flag: str) -> click.Option:
    (parameter,) = (one for one in verb.params if flag in one.opts)
    assert isinstance(parameter, click.Option)
    return parameter


@pytest.mark.parametrize("verb, flag, entries", ENTRIES)
def test_entries_are_known_to_the_command_line(verb: click.Command, flag: str, entries: Mapping[str, Any]) -> None:
    assert ", ".join(entries) in str(option_of(verb, flag).help)


@pytest.mark.parametrize("name", ROUTER_OPTIONS)
def test_an_option_of_a_router_is_known_to_the_command_line_and_the_documentation(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    assert option_of(simulate, flag).help == ROUTER_OPTIONS[name].help
    assert flag in (DOCS.parent / "scaling.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_takes_its_own_options_and_no_others(name: str) -> None:
    own = {option.name for option in STRATEGIES[name].options}
    for other in OPTIONS:
        given: dict[str, Any] = {"strategy": name, other: OPTIONS[other].kind(3)}
        if other in own:
            assert SchedulingSettings.of(**given).options.given == {other: given[other]}
        else:
            with pytest.raises(SettingsError, match=f"has no effect with --strategy {name}; it goes with"):
                SchedulingSettings.of(**given)


def test_settings_are_changed_by_name() -> None:
    settings = SchedulingSettings.of(strategy="adaptive", itl_target=0.1, policy="sjf")
    changed = settings.but(strategy="chunked", itl_target=None, early_end_tokens=4)
    assert (changed.strategy, changed.policy, changed.options.given) == ("chunked", "sjf", {"early_end_tokens": 4})


def test_values_are_read_by_their_options() -> None:
    size, wait = count("size", "How many."), seconds("wait", "How long.", 0.5)
    values = OptionValues({"size": 4})
    assert (values[size], values[wait]) == (4, 0.5)
    for bad in (0, -1, 2**31):
        with pytest.raises(BadOption, match=r"size is .*; give a number above 0, at most 2,147,483,647\."):
            OptionValues({"size": bad})[size]
    for worse in (0.5, float("nan"), True, "4"):
        with pytest.raises(BadOption, match=r"size is .*; give a whole number\."):
            OptionValues({"size": worse})[size]
