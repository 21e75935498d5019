"""How many examples a test draws at random where each costs much: few from day to day, twenty times as many with
`./check --all`."""

from __future__ import annotations

from hypothesis import settings

_OF = settings.get_profile("default").max_examples


def examples(count: int) -> settings:
    """`count` where Hypothesis by itself would draw a hundred."""
    return settings(max_examples=count * settings.default.max_examples // _OF)
