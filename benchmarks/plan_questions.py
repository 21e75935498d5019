"""The questions that docs/planning.md answers: each a command, the main paragraphs of its answer, and a picture.

    python -m benchmarks.plan_questions [--only NAME …] [--write]

`--write` runs each command and puts its answer between the marks of its name on the page; the words around them stay.
So it does with the file of settings that `inflight tune` finds. A picture shows each SLO's percentile, as a share of
its limit, as planned and under other traffic.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chart_pictures import photograph
from benchmarks.comparison import log_line
from benchmarks.sizing import PICTURES, trace, write_trace
from inflight.report.charts.chart import Chart, Key, Plot, Series, ValueTable, rounded, scale, series_class
from inflight.report.charts.quantity import quantity

PAGE = Path(__file__).parent.parent / "docs" / "planning.md"
WIDTH = 118  # characters of a line of the page
LEFT_OUT = ("Memory:", "Basis:")  # paragraphs of an answer that docs explain once
CHAT = "--input-tokens lognormal:1020:4142 --output-tokens lognormal:129:601"
WHOLE = "chat"  # the question whose answer is shown whole, and explained
SHORT = {  # changes, as the columns of a picture name them
    "20 % more requests": "requests +20 %",
    "answers half as long again": "answers +50 %",
    "prompts half as long again": "prompts +50 %",
    "arrivals clumped twice as much": "bursts × 2",
}
QUESTIONS: Mapping[str, str] = {  # name → command, as the page shows it
    "seventy-billion": f"""
inflight plan --model llama-3-70b --hardware a100-80 --rate 500 \\
    {CHAT} --slo "ttft=1000(p99)"
""",
    "deepseek": f"""
inflight plan --model deepseek-v3 --hardware h200 --rate 10 \\
    {CHAT} --slo "ttft=2000(p95),tpot=50(p95)"
""",
    "one-h100": f"""
inflight plan --model gpt-oss-120b --hardware h100 --gpus 1 \\
    {CHAT} --slo "ttft=1000(p95),tpot=30(p95)"
""",
    "cpu-box": """
inflight plan --model qwen3-30b-a3b --weights int4 --hardware epyc-9654 --rate 0.5 \\
    --input-tokens lognormal:500:2000 --output-tokens lognormal:129:601 --slo "ttft=5000(p95),tpot=100(p95)"
""",
    "agents": """
inflight plan --model gpt-oss-120b --hardware h100 --sessions 128 --turns 20 --think 10 \\
    --input-tokens 20000 --turn-tokens 4000 --output-tokens lognormal:200:1000 --slo "ttft=5000(p95),tpot=50(p95)"
""",
    "vectors": """
inflight plan --model bge-m3 --hardware l4 --rate 5000 \\
    --input-tokens lognormal:180:700 --slo "ttft=200(p99)"
""",
    "disaggregate": f"""
inflight plan --model llama-3.1-70b --hardware h100 --tensor-parallel 4 --rate 100 --compare-layouts \\
    {CHAT} --slo "ttft=1000(p90),tpot=50(p90)"
""",
    "chat": """
inflight plan --model llama-3-8b --hardware l40s --price 1.2 --trace chat.csv \\
    --slo "ttft=1500(p99),itl=150(p99)" --compare-strategies
""",
    "shared": """
inflight plan --model llama-3.1-8b --hardware h100 --gpus 1 --classes shared.toml
""",
}
TUNED = "tuned"
TUNE = """
inflight tune --model llama-3-8b --hardware l40s --trace chat.csv --rate 5 \\
    --slo "ttft=1500(p99),itl=150(p99)" --output tuned.toml
"""
CLASSES = re.compile(r"`shared.toml`:\n\n```toml\n(?P<text>.*?)```", re.DOTALL)  # as the page shows it


def answer(command: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the JSON of a command's answer, asked in a folder. Raises SystemExit where it fails."""
    return run(command, folder), json.loads(run(command, folder, "--json"))


def run(command: str, folder: Path, *more: str) -> str:
    """Return what a command prints, run in a folder. Raises SystemExit where it fails."""
    asked = [sys.executable, "-m", "inflight", *shlex.split(command.replace("\\\n", " "))[1:], *more]
    ended = subprocess.run(asked, capture_output=True, text=True, cwd=folder)
    if ended.returncode:
        raise SystemExit(f"{command.strip()} ended with exit code {ended.returncode}: {ended.stderr or ended.stdout}")
    return ended.stdout


def shown_of(text: str, left_out: tuple[str, ...] = LEFT_OUT) -> str:
    """Return an answer without some of its paragraphs, in lines of the page's width."""
    kept = [one for one in text.strip().split("\n\n") if not one.startswith(left_out)]
    return "\n".join(_wrapped(line) for line in "\n\n".join(kept).split("\n"))


def _wrapped(line: str) -> str:
    if len(line) <= WIDTH:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def chart(result: Mapping[str, Any]) -> Chart | None:
    """Draw each SLO's percentile as a share of its limit under other traffic; None where there
    is no SLO, or no other traffic."""
    trials = [("as planned", result["values"])]
    trials += [(SHORT[one["name"].partition(" (")[0]], one["values"]) for one in result["changes"]]
    names = [name for name, _ in trials]
    series = [
        Series(slo, series_class(index), values=rounded(_share(values.get(slo), slo) for _, values in trials))
        for index, slo in enumerate(result["values"])
    ]
    if not series or not result["changes"]:
        return None
    greatest = max(value or 0.0 for one in series for value in one.values)
    machines = result["machine"]
    about = f"{result['replicas']:,} of {machines}. Without a column: the queue grows without end."
    plot = Plot("groups", scale(0.0, "traffic"), scale(max(greatest, 100.0), "of the limit", "%"), series, names=names)
    keys = tuple(Key(one.name, one.colour, "area") for one in series) if len(series) > 1 else ()
    rows = [(one.name, *(quantity(value, "%") for value in one.values)) for one in series]
    return Chart("Latencies beside their limits", about, plot, keys, ValueTable(("", *names), tuple(rows)))


def _share(value: float | None, slo: str) -> float | None:
    """Return seconds in percent of an SLO's limit, which its name ends with."""
    limit = float(slo.rpartition("≤ ")[2].removesuffix(" ms").replace(",", "")) / 1e3
    return None if value is None else 100 * value / limit


def replaced(page: str, name: str, shown: str) -> str:
    """Return the page with this between the marks of a name. Raises ValueError where there are none."""
    begin, end = f"<!-- begin answer {name} -->", f"<!-- end answer {name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"{PAGE.name} has no '{begin}' and '{end}'; put them where the answer belongs.")
    return re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{shown}\n{end}", page, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=(*QUESTIONS, TUNED), default=[*QUESTIONS, TUNED], help="these alone"
    )
    parser.add_argument("--write", action="store_true", help="write answers and pictures into docs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        classes = CLASSES.search(PAGE.read_text(encoding="utf-8"))
        assert classes is not None, "the page has no shared.toml"
        Path(folder, "shared.toml").write_text(classes["text"], encoding="utf-8")
        write_trace(Path(folder, "chat.csv"), trace())
        ask([one for one in arguments.only if one in QUESTIONS], Path(folder), arguments.write)
        if TUNED in arguments.only:
            tune(Path(folder), arguments.write)


def ask(names: Sequence[str], folder: Path, write: bool) -> None:
    """Ask questions in a folder, and print the answers. write: into docs, too."""
    for name in names:
        log_line(f"{name}: {QUESTIONS[name].strip()}")
        text, result = answer(QUESTIONS[name], folder)
        shown = shown_of(text, () if name == WHOLE else LEFT_OUT)
        print(shown)
        if not write:
            continue
        parts = [f"```\n{QUESTIONS[name].strip()}\n```", f"```\n{shown}\n```"]
        figure = chart(result)
        if figure is not None and name != WHOLE:
            path = PICTURES / f"plan-{name}.png"
            photograph(path, figure.title, [figure])
            parts.append(f"![latencies beside their limits under other traffic](pictures/{path.name})")
        put(name, parts)


def tune(folder: Path, write: bool) -> None:
    """Tune in a folder, and print the settings. write: into docs, too."""
    log_line(f"{TUNED}: {TUNE.strip()}")
    run(TUNE, folder)
    found = (folder / "tuned.toml").read_text(encoding="utf-8").strip()
    print(found)
    if write:
        put(TUNED, [f"```\n{TUNE.strip()}\n```", f"```toml\n{found}\n```"])


def put(name: str, parts: Sequence[str]) -> None:
    """Write paragraphs between the marks of a name on the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(replaced(page, name, "\n\n".join(parts)), encoding="utf-8")


if __name__ == "__main__":
    main()
