"""All attacks, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.attack.bodies import body_attacks
from benchmarks.attack.calls import call_attacks, flood
from benchmarks.attack.connections import connection_attacks, crowds
from benchmarks.attack.files import file_attacks
from benchmarks.attack.grammars import grammar_attacks
from benchmarks.attack.kind import Attack


def everything() -> Mapping[str, Attack]:
    """Return the attacks by name."""
    return {**catalogue(), **{attack.name: attack for attack in [*crowds(), flood()]}}


def catalogue() -> Mapping[str, Attack]:
    attacks = [*body_attacks(), *call_attacks(), *connection_attacks(), *file_attacks(), *grammar_attacks()]
    found = {attack.name: attack for attack in attacks}
    assert len(found) == len(attacks), "names are unique"
    return found
