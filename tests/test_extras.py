"""How an extra is installed, as sentences say it."""

from __future__ import annotations

import sys

import pytest

from inflight.extras import pip_install


def test_it_is_this_interpreters_pip_even_where_its_path_has_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_install("gpu") == f"{sys.executable} -m pip install 'inflight[gpu]'"
    monkeypatch.setattr(sys, "executable", "/my things/python")
    assert pip_install("ray") == "'/my things/python' -m pip install 'inflight[ray]'"
