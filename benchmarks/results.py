"""docs/results.md: a table of contents, and one section per program, which only its own command rewrites.

Knows the page's form and order; not what a section says. A section lies between two marker comments that carry its
name: the program's, and what it was run for where there are several (`roofline llama-3.2-1b`).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "docs" / "results.md"
_INTRODUCTION = """# Results

What was measured, each section by the command it names, on the machine it names. The cores of that machine are shared
with others, so that ratios measured in one run mean more than single figures. Sections are generated: a program
rewrites its own and no other.
"""
# What a reader asks, and the programs that answer, in the page's order.
_ORDER: Mapping[str, Sequence[str]] = {
    "How fast it is, beside others and beside what the machine allows": (
        *(
            "peers",
            "real_models",
            "roofline",
            "beside_products",
            "recurrence",
            "latent",
            "int4",
            "gpu",
            "growth",
        ),
        *("family_error", "embeddings", "neighbour", "scheduler_cost", "structured_output", "adapters", "kv_tiers"),
        *("sessions", "session_trace", "kv_transfer", "several_models", "routing", "disaggregation"),
        *("suffix_index", "light", "first_token", "start", "install", "versions"),
    ),
    "What batching and scheduling bring": (
        *("field", "strategies", "early_end", "long_prompts", "overload", "fairness", "batch_lane"),
        *("kv_allocation", "kv_windows", "prefix_cache", "turns", "preemption", "speculation"),
    ),
    "What the server bears": (
        *("body_validation", "attack", "serve_overload", "soak", "kill_loop", "replica_kills", "peer_kills"),
        *("tier_faults", "http_cost", "live_viewers", "live_page", "long_record", "router_cost"),
    ),
    "How true the simulator is": ("simulation_accuracy", "decision", "simulator"),
    "How good the instruments are": ("bench_client", "trace_loading"),
}
_SECTION = re.compile(r"<!-- begin (?P<name>.+?) -->\n(?P<body>.*?)\n<!-- end (?P=name) -->", re.DOTALL)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_section(name: str, title: str, command: str, body: str) -> None:
    """In the place of the earlier one of this name, or as a new one. ValueError: the program has no place yet."""
    day = datetime.now(UTC).date().isoformat()
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    sections = {found["name"]: found["body"] for found in _SECTION.finditer(text)}
    sections[name] = f"## {title}\n\n`{command}`, {day}, {_machine()}\n\n{body}"
    page = _page(sections)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(page, encoding="utf-8")


def _page(sections: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {question: [] for question in _ORDER}
    for name in sorted(sections, key=_place):
        groups[_question(name)].append(name)
    contents = [
        "\n".join([f"- {question}", *(f"  - {_link(sections[name])}" for name in names)])
        for question, names in groups.items()
        if names
    ]
    bodies = [
        f"<!-- begin {name} -->\n{sections[name]}\n<!-- end {name} -->" for names in groups.values() for name in names
    ]
    return "\n\n".join([_INTRODUCTION.rstrip("\n"), "\n".join(contents), *bodies]) + "\n"


def _question(name: str) -> str:
    program = name.partition(" ")[0]
    for question, programs in _ORDER.items():
        if program in programs:
            return question
    raise ValueError(f"{program} is in no group of results; add it to _ORDER in {Path(__file__).name}")


def _place(name: str) -> tuple[int, str]:
    """Sections of one program stay together, in the order of their names."""
    program, _, subject = name.partition(" ")
    return _ORDER[_question(name)].index(program), subject


def _link(section: str) -> str:
    """To the section's heading, by the anchor that a page of Markdown gives it."""
    title = section.partition("\n")[0].removeprefix("## ")
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{anchor})"


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"
