"""Pages of results: docs/results.md, their contents, and one page a subject under docs/results/.

A page has one section for each program, or for each thing that the program was run for (`roofline llama-3.2-1b`), the
newest first. Only the program's own command rewrites a section. It lies between two marker comments with its name.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent.parent / "docs" / "results.md"
_INTRODUCTION = """# Results

What was measured, each section by the command it names, on the machine it names. The cores of that machine are shared
with others, so that ratios measured in one run mean more than single figures. Each section is of the code of its day,
which it names. Sections are generated: a program rewrites its own and no other. On a page the newest come first.
"""


class Subject(NamedTuple):
    """A page, the programs whose sections are on it, and what a reader of its older sections must know."""

    title: str
    programs: Sequence[str]
    note: str = ""


SUBJECTS: Mapping[str, Subject] = {  # by file name, in the order of the contents
    "engines": Subject("Beside other engines", ("peers", "first_token", "start", "light", "install")),
    "precision": Subject("What precision costs", ("real_models", "family_error", "int4")),
    "kernels": Subject(
        "Kernels beside what the machine allows",
        ("roofline", "beside_products", "growth", "recurrence", "latent", "scheduler_cost", "neighbour", "versions"),
    ),
    "gpu": Subject("On a GPU", ("gpu",)),
    "embeddings": Subject("Vectors and scores of texts", ("embeddings",)),
    "scheduling": Subject(
        "What batching and scheduling bring",
        (
            *("field", "strategies", "early_end", "long_prompts", "suspension", "overload", "hindsight", "fairness"),
            *("slack", "batch_lane", "lengths", "length_probe_cost", "programs", "policy_table"),
        ),
    ),
    "speculation": Subject("What speculation brings", ("speculation", "suffix_index")),
    "memory": Subject(
        "KV memory, caches and tiers",
        (
            *("kv_allocation", "kv_windows", "prefix_cache", "turns", "preemption", "kv_tiers", "sessions"),
            *("session_trace", "session_engine", "tier_faults", "oversubscription"),
        ),
    ),
    "schemas-and-adapters": Subject("Structured output and adapters", ("structured_output", "adapters")),
    "several-models": Subject("Several models on one machine", ("several_models",)),
    "many-machines": Subject(
        "Replicas, routers, and prefill beside decode",
        ("routing", "router_cost", "disaggregation", "kv_transfer", "replica_kills", "peer_kills"),
    ),
    "server": Subject(
        "What the server costs, and what it bears",
        (
            *("http_cost", "body_validation", "attack", "serve_overload", "soak", "kill_loop"),
            *("server_kills", "live_viewers", "live_page", "long_record"),
        ),
        "Sections older than 2026-11-29 measured HTTP and engine in one process; now each has a process of its own.",
    ),
    "judges": Subject("Judged by others", ("conformance", "judges", "bfcl", "lm_eval", "open_webui")),
    "simulator": Subject("How true the simulator is", ("simulation_accuracy", "decision", "plan_spread", "simulator")),
    "published": Subject("Predicted beside what others published", ("published",)),
    "instruments": Subject("How good the instruments are", ("bench_client", "trace_loading")),
}
_SECTION = re.compile(r"<!-- begin (?P<name>.+?) -->\n(?P<body>.*?)\n<!-- end (?P=name) -->", re.DOTALL)
_DAY = re.compile(r"`, (20\d\d-\d\d-\d\d), ")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def write_section(name: str, title: str, command: str, body: str) -> None:
    """Write a section, in place of the earlier one of this name if there is one, and the contents.

    Args:
        name: The program's, and what it was run for where there are several.
        title: Of the section.
        command: That made it.
        body: Markdown; links and pictures are as from docs/.

    Raises:
        ValueError: The program is of no subject yet.
    """
    page = page_of(name)
    day = datetime.now(UTC).date().isoformat()
    sections = read_sections(page)
    sections[name] = f"## {title}\n\n`{command}`, {day}, {_machine()}\n\n{_from_folder(body)}"
    path = _path(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(page, sections), encoding="utf-8")
    RESULTS.write_text(render_contents({one: read_sections(one) for one in SUBJECTS}), encoding="utf-8")


def page_of(name: str) -> str:
    """Return the page of a section. Raises ValueError."""
    program = name.partition(" ")[0]
    for page, subject in SUBJECTS.items():
        if program in subject.programs:
            return page
    raise ValueError(f"{program} is of no subject of results; add it to SUBJECTS in {Path(__file__).name}")


def read_sections(page: str) -> dict[str, str]:
    """Return a page's sections by name; none where there is no such file."""
    path = _path(page)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {found["name"]: found["body"] for found in _SECTION.finditer(text)}


def render_page(page: str, sections: Mapping[str, str]) -> str:
    bodies = [f"<!-- begin {name} -->\n{sections[name]}\n<!-- end {name} -->" for name in _newest_first(page, sections)]
    head = f"# {SUBJECTS[page].title}\n\nHow sections come about: [results](../results.md)."
    notes = [SUBJECTS[page].note] if SUBJECTS[page].note else []
    return "\n\n".join([head, *notes, *bodies]) + "\n"


def render_contents(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page that leads to all others. sections: of each page."""
    groups = [
        "\n".join(
            [
                f"- [{SUBJECTS[page].title}](results/{page}.md)",
                *(f"  - {_link(page, found[name])}" for name in _newest_first(page, found)),
            ]
        )
        for page, found in sections.items()
        if found
    ]
    return "\n\n".join([_INTRODUCTION.rstrip("\n"), "\n".join(groups)]) + "\n"


def _path(page: str) -> Path:
    return RESULTS.with_suffix("") / f"{page}.md"


def _newest_first(page: str, sections: Mapping[str, str]) -> list[str]:
    """Return the names of a page's sections; those of one day in the order of programs, and of one program by name."""
    programs = SUBJECTS[page].programs

    def place(name: str) -> tuple[int, str]:
        program, _, subject = name.partition(" ")
        return programs.index(program), subject

    return sorted(sorted(sections, key=place), key=lambda name: _day(sections[name]), reverse=True)  # stable


def _day(section: str) -> str:
    found = _DAY.search(section)
    return found[1] if found else ""


def _from_folder(body: str) -> str:
    """Return Markdown with its relative links as from docs/results/."""
    return re.sub(r"\]\((?!\.\./|[a-z]+:|#)", "](../", body)


def _link(page: str, section: str) -> str:
    """Return a link to the section's heading, by the anchor that a page of Markdown gives it."""
    title = section.partition("\n")[0].removeprefix("## ")
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}](results/{page}.md#{anchor})"


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"
