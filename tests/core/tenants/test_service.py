"""What engines tell each other of tenants' service."""

from __future__ import annotations

from inflight.core.tenants.service import elsewhere

GIVEN = {
    "one": {"interactive": {"a": 3.0, "b": 1.0}},
    "two": {"interactive": {"a": 2.0}, "batch": {"b": 4.0}},
    "three": {},
}


def test_each_hears_what_the_others_gave() -> None:
    assert elsewhere(GIVEN, "one") == {"interactive": {"a": 2.0}, "batch": {"b": 4.0}}
    assert elsewhere(GIVEN, "two") == {"interactive": {"a": 3.0, "b": 1.0}}
    assert elsewhere(GIVEN, "three") == {"interactive": {"a": 5.0, "b": 1.0}, "batch": {"b": 4.0}}
    assert elsewhere({"one": GIVEN["one"]}, "one") == {}
