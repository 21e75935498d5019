"""Fixtures shared by the tests of execution: oracle models, built once per session and only when a test asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .oracle import Oracle


OracleOf = Callable[[str], "Oracle"]


@pytest.fixture(scope="session")
def oracle_of(tmp_path_factory: pytest.TempPathFactory) -> OracleOf:
    """variant name → its oracle."""
    built: dict[str, Oracle] = {}

    def get(variant: str) -> Oracle:
        if variant not in built:
            from .oracle import build

            built[variant] = build(variant, tmp_path_factory.mktemp(variant))
        return built[variant]

    return get
