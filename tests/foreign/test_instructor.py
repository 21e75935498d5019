"""Instructor: answers as the caller's classes, by a call that must come, or by the form of the answer."""

from __future__ import annotations

from typing import Any

import pytest

from .cases import MESSAGES, MODEL, SCRIPTED_MODEL
from .clients import ForeignClient
from .scripted import REPORT, REPORT_AGAIN

pytestmark = pytest.mark.foreign
CLIENT = "instructor"
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 1.5, "max_tokens": 400, "max_retries": 0}
MADE = {"city": "Zürich", "degrees": 21}
by_tools = pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT"])


def asked(question: str) -> dict[str, Any]:
    return {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": question}], "kind": "Report"}


@by_tools
def test_a_call_is_the_callers_class(agent: ForeignClient, mode: str) -> None:
    assert agent.call("create", mode=mode, **asked(REPORT)) == {"made": MADE, "attempts": 1}
    assert agent.call("create_async", mode=mode, **asked(REPORT)) == MADE
    parts = agent.call("grow", mode=mode, **asked(REPORT))
    assert parts[-1] == MADE


@by_tools
def test_what_its_checks_refuse_is_asked_for_again(agent: ForeignClient, mode: str) -> None:
    result = agent.call("create", mode=mode, max_retries=2, **asked(REPORT_AGAIN))
    assert result == {"made": MADE, "attempts": 2}


@pytest.mark.parametrize("seed", range(3))
def test_the_form_of_the_answer_is_the_callers_class(client: ForeignClient, seed: int) -> None:
    """At a temperature at which nothing but the schema can make it so, and at the first attempt."""
    result = client.call("create", mode="JSON_SCHEMA", kind="City", seed=seed, **ASK)
    assert result["attempts"] == 1 and result["made"]["name"] in ("Bern", "Zug")
    assert client.call("create_async", mode="JSON_SCHEMA", kind="City", seed=seed, **ASK) == result["made"]
    parts = client.call("grow", mode="JSON_SCHEMA", kind="City", seed=seed, **ASK)
    assert parts[-1] == result["made"]
