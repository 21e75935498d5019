"""docs/results.md: one generated section per program, each rewritten only by its own command.

Knows the file's form: a section lies between two marker comments that carry the program's name.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "docs" / "results.md"
_INTRODUCTION = """# Results

What was measured, each section by the command it names, on the machine it names. The cores of that machine are shared
with others, so that ratios measured in one run mean more than single figures. Sections are generated: a program
rewrites its own and no other.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_section(program: str, title: str, command: str, body: str) -> None:
    """Put the section in the place of the program's earlier one, or at the end."""
    begin, end = f"<!-- begin {program} -->", f"<!-- end {program} -->"
    day = datetime.now(UTC).date().isoformat()
    section = f"{begin}\n## {title}\n\n`{command}`, {day}, {_machine()}\n\n{body}\n{end}"
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else _INTRODUCTION
    if begin in text:
        before, _, rest = text.partition(begin)
        text = before + section + rest.partition(end)[2]
    else:
        text = text.rstrip("\n") + "\n\n" + section + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"
