"""Sentences of templates: code passes each macro the arguments that it has, also where no other test comes by."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from inflight import planning, report
from inflight.planning.rendering import dollars, milliseconds, number

FOLDERS = {
    "sentences.j2": (Path(planning.__file__).parent, {"sentence"}),
    "findings.j2": (Path(report.__file__).parent, {"found", "paragraphs"}),
}


def calls(folder: Path, functions: set[str]) -> Iterator[tuple[str, set[str], bool]]:
    """Name of the macro, keywords, and whether there are more of them, of each call in a package."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if called in functions and node.args and isinstance(node.args[0], ast.Constant):
                    keywords = {one.arg for one in node.keywords if one.arg is not None}
                    yield str(node.args[0].value), keywords, len(keywords) < len(node.keywords)


@pytest.mark.parametrize("template", FOLDERS)
def test_every_macro_gets_its_arguments(template: str) -> None:
    folder, functions = FOLDERS[template]
    environment = Environment(loader=FileSystemLoader(folder / "templates"))
    environment.filters.update(dict.fromkeys(("f", "ms", "counted", "finite", "q", "line", "engine_at"), str))
    module = environment.get_template(template).module
    found = list(calls(folder, functions))
    assert len(found) > 15
    for name, keywords, has_more in found:
        arguments = set(getattr(module, name).arguments)
        assert keywords <= arguments if has_more else keywords == arguments, name
    texts = "".join(path.read_text(encoding="utf-8") for path in (folder / "templates").glob("*.j2"))
    macros = {name for name in vars(module) if hasattr(getattr(module, name), "arguments")}
    unused = {name for name in macros - {name for name, _, _ in found} if texts.count(f"{name}(") < 2}
    assert not unused


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(2563.6, "2,563.60"), (0.05, "0.05"), (0.01, "0.01"), (0.00312, "0.0031"), (0.00004, "0.000040"), (0.0, "0.00")],
)
def test_small_amounts_of_money_have_two_significant_digits(amount: float, shown: str) -> None:
    assert dollars(amount) == shown


@pytest.mark.parametrize(
    ("seconds", "limit", "shown"),
    [
        (0.0304, 0.03, "30.4 ms"),
        (0.0300001, 0.03, "30.0001 ms"),
        (0.0296, 0.03, "30 ms"),  # within it
        (0.0306, 0.03, "31 ms"),
        (1.2345, 1.2, "1,234 ms"),
        (math.nan, 0.03, "-"),
        (math.inf, 0.03, "endless"),
    ],
)
def test_a_time_beyond_a_limit_never_reads_as_the_limit(seconds: float, limit: float, shown: str) -> None:
    assert milliseconds(seconds, limit) == shown


def test_large_numbers_have_no_exponent() -> None:
    assert [number(value, ",.3g") for value in (0.00456, 7.891, 456.78, 20_000.0)] == [
        "0.00456",
        "7.89",
        "457",
        "20,000",
    ]


def test_a_name_that_looks_like_an_exponent_stays_a_name() -> None:
    assert number("code+chat", "<12") == "code+chat   "
    assert number(1.0e-7, ".3g") == "1e-07", "a small one is read off its exponent"
