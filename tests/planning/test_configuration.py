"""Configuration files: TOML that reads back, with every reason beside its value."""

from __future__ import annotations

import tomllib

from inflight.config.setting import Resolved
from inflight.planning.engine_config import configuration


def test_values_read_back_and_reasons_stand_above_them() -> None:
    options = {
        "strategy": Resolved("chunked", 'it is the "best"'),
        "max-num-seqs": Resolved(64, "word " * 60),
        "itl-target": Resolved(0.05, "the SLO"),
        "isolate-tenants": Resolved(True, "as set"),
    }
    text = configuration(options, ["Found by a search."])
    assert tomllib.loads(text) == {name: one.value for name, one in options.items()}
    lines = text.splitlines()
    assert lines[0] == "# Found by a search."
    assert lines[lines.index("itl-target = 0.05") - 1] == "# the SLO"
    assert max(map(len, lines)) <= 120
