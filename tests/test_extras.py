"""How an extra is installed, as sentences say it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from inflight.extras import DISTRIBUTION, pip_install


def test_it_is_this_interpreters_pip_even_where_its_path_has_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_install("gpu") == f"{sys.executable} -m pip install 'inflight-llm[gpu]'"
    monkeypatch.setattr(sys, "executable", "/my things/python")
    assert pip_install("ray") == "'/my things/python' -m pip install 'inflight-llm[ray]'"


def test_the_package_has_the_name_that_sentences_have_pip_install() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != "inflight", "that name is a different project's on PyPI"
