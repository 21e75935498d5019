"""All policies by name. A new one is a file with its `ENTRY`, and a line here."""

from __future__ import annotations

from inflight.core.policies import PolicyEntry, deadline, fair, fcfs, hrrn, prefix, priority, program, sjf

POLICIES: dict[str, PolicyEntry] = {
    module.ENTRY.name: module.ENTRY for module in (fcfs, sjf, hrrn, priority, fair, deadline, prefix, program)
}
