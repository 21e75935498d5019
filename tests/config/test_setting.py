"""Declared settings: what a field says of itself, and the one check of choices and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import Bound, SettingsError, check_settings, declared_settings, setting, whole_number
from inflight.server.settings import ServerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One setting of each type."""

    colour: Literal["red", "blue"] = setting("red", "Colour.", "Looks")
    shade: Literal["dark", "light"] | None = setting(None, "Shade.")
    rows: int | None = setting(None, "Rows.", bound=whole_number(1, 2000))
    memory: float = setting(1.0, "Memory.", bound=Bound(0, 8, "a number above 0, up to 8", above=True, unit="GiB"))
    share: float = setting(0.5, "Share.", bound=Bound(0, 1, "a share from 0 to below 1", below=True))
    folder: Path | None = setting(None, "Folder.")
    names: tuple[str, ...] = setting((), "Names.")
    weights: Mapping[str, float] = setting({}, "Weights.")
    password: str = setting("secret", "Password.", is_secret=True)
    other: int = 3

    def __post_init__(self) -> None:
        check_settings(self)


def test_a_field_says_its_type_choices_and_default() -> None:
    found = {one.name: (one.kind, one.parts, one.choices, one.default) for one in declared_settings(Settings)}
    assert found["colour"] == (str, (), ("red", "blue"), "red")
    assert found["shade"] == (str, (), ("dark", "light"), None)
    assert found["rows"] == (int, (), (), None)
    assert found["folder"] == (Path, (), (), None)
    assert found["names"] == (tuple, (str, ...), (), ())
    assert found["weights"] == (Mapping, (str, float), (), {})
    assert "other" not in found and "secret" not in repr(Settings())
    assert Settings().weights is not Settings().weights


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"colour": "bleu"}, "--colour is 'bleu'; known are red, blue. Did you mean blue?"),
        ({"shade": "none"}, "--shade is 'none'; known are dark, light."),
        ({"rows": 0}, "--rows is 0; give a whole number from 1 to 2,000."),
        ({"rows": 1.5}, "--rows is 1.5; give a whole number from 1 to 2,000."),
        ({"memory": 0}, "--memory is 0 GiB; give a number above 0, up to 8."),
        ({"memory": float("nan")}, "--memory is nan GiB; give a number above 0, up to 8."),
        ({"memory": "much"}, "--memory is 'much'; give a number of GiB."),
        ({"share": 1}, "--share is 1; give a share from 0 to below 1."),
        ({"share": "half"}, "--share is 'half'; give a share from 0 to below 1."),
    ],
)
def test_a_wrong_value_is_one_sentence(given: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as error:
        Settings(**given)
    assert str(error.value) == sentence


def test_bounds_include_what_they_do_not_exclude() -> None:
    assert Settings(rows=1, memory=8, share=0).rows == 1
    assert Settings(rows=2000, shade=None).rows == 2000


@pytest.mark.parametrize("kind", [EngineSettings, SchedulingSettings, ServerSettings])
def test_every_setting_has_its_help(kind: type) -> None:
    for one in declared_settings(kind):
        assert one.setting.help.endswith(".") and one.setting.help[0] != " ", one.name
