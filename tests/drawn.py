"""How many examples a test draws at random where each costs much: few from day to day, ten times as many with
`./check --all`."""

from __future__ import annotations

from hypothesis import settings

_OF = settings.get_profile("default").max_examples


def examples(count: int) -> settings:
    """`count` where a test that says nothing draws a hundred."""
    return settings(max_examples=count * settings.default.max_examples // _OF)
