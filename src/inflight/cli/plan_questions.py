"""Questions of `inflight plan` without arguments, on a terminal: model, GPU, traffic and limits, each checked."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from inflight.cli.summary import show
from inflight.cli.verb import Verb, variables_of
from inflight.models.known import read_model
from inflight.simulate.hardware import find_gpu
from inflight.workload.lengths import parse_lengths
from inflight.workload.traces import load

CHAT = ("lognormal:1020:4142", "lognormal:129:601")  # tokens of prompts and answers in Azure's conversation trace
EXAMPLE = "example"
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|)")


@dataclass(frozen=True, slots=True)
class TerminalQuestion:
    """A question. options: of the command line that an answer gives. check: raises ValueError for an answer that none
    takes. default: empty answers are this."""

    text: str
    default: str
    check: Callable[[str], object]
    options: Callable[[str], list[str]]

    def ask(self) -> list[str]:
        """Ask until an answer is valid; return its options. Raises click.Abort."""
        return self.options(click.prompt(self.text, self.default, value_proc=self._checked, err=True))

    def _checked(self, answer: str) -> str:
        """Return the answer; raise click.UsageError, which asks again."""
        try:
            self.check(answer.strip())
        except (ValueError, OSError, RuntimeError) as error:  # the last of a home folder that is not there
            raise click.UsageError(str(error)) from None
        return answer.strip()


def _rate_or_trace(answer: str) -> None:
    try:
        found = float(answer)
    except ValueError:
        if not _file(answer).is_file():
            raise ValueError(f"{answer!r} is neither a number nor a file.") from None
        load(_file(answer))  # a file that is no trace is refused at once
        return
    if not 0 < found < math.inf:
        raise ValueError(f"{answer} is not a rate: it must be above 0, and finite.")


def _file(answer: str) -> Path:
    return Path(answer).expanduser()


def _milliseconds(answer: str) -> float | None:
    """Return a limit: milliseconds, or seconds where the unit says so; None for none. Raises ValueError."""
    match = _TIME.fullmatch(answer.lower())
    if match is None and answer.lower() != "none":
        raise ValueError(f"{answer!r} is no time; give milliseconds such as 500, seconds such as 1.5 s, or none.")
    if match is None:
        return None
    limit = float(match[1]) * (1e3 if match[2] == "s" else 1.0)
    if not 0 < limit < math.inf:
        raise ValueError(f"{answer!r} is no limit: it must be above 0.")
    return limit


def _limit(metric: str) -> Callable[[str], list[str]]:
    return lambda answer: [] if (limit := _milliseconds(answer)) is None else ["--slo", f"{metric}={_digits(limit)}"]


def _digits(number: float) -> str:
    """Return a number as an SLO has it, without an exponent."""
    return f"{number:f}".rstrip("0").rstrip(".")


def _price(answer: str) -> None:
    try:
        found = float(answer)
    except ValueError:
        found = 1.0 if answer == EXAMPLE else math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{answer!r} is no price; give US dollars above 0, such as 2.5, or {EXAMPLE}.")


def ask_plan() -> list[str]:
    """Ask for a deployment; return the arguments that mean it. Raises click.Abort."""
    show("Without options `inflight plan` asks for them; an empty answer takes what stands in brackets.")
    model = TerminalQuestion(
        "Model (a name, a folder or a config.json)", "llama-3.1-8b", read_model, lambda answer: ["--model", answer]
    ).ask()
    has_answers = read_model(model[-1]).head is not None  # others answer with vectors
    gpu = TerminalQuestion(
        "GPU (such as l4, l40s, a100-80, h100, b200, mi300x, rtx-4090)",
        "h100",
        find_gpu,
        lambda answer: ["--hardware", answer],
    ).ask()
    price = TerminalQuestion(
        f"US dollars per GPU and hour ({EXAMPLE}: what clouds ask for it)",
        EXAMPLE,
        _price,
        lambda answer: [] if answer == EXAMPLE else ["--price", answer],
    ).ask()
    return [*model, *gpu, *price, *_ask_traffic(has_answers), *_ask_limits(has_answers)]


def _ask_traffic(has_answers: bool) -> list[str]:
    (traffic,) = TerminalQuestion(
        "Requests per second at the busiest time, or a trace's file", "10", _rate_or_trace, lambda answer: [answer]
    ).ask()
    if _file(traffic).is_file():
        return ["--trace", str(_file(traffic))]
    arguments = ["--rate", traffic]
    lengths = (("prompts", "input", CHAT[0]), ("answers", "output", CHAT[1]))
    for of, name, usual in lengths if has_answers else lengths[:1]:
        text = f"Tokens of {of} (a number, or lognormal:MEDIAN:P99)"
        (form,) = TerminalQuestion(text, usual, parse_lengths, lambda answer: [answer]).ask()
        arguments += [f"--{name}-tokens", form]
    return arguments


def _ask_limits(has_answers: bool) -> list[str]:
    arguments: list[str] = []
    limits = (("ttft", "Time to the first token", "1000 ms"), ("tpot", "Time per further token", "50 ms"))
    for metric, of, usual in limits if has_answers else (("ttft", "Time to the vector", "300 ms"),):
        text = f"{of} that 99 % of the requests keep, such as 800 ms or 1.5 s (none: no limit)"
        arguments += TerminalQuestion(text, usual, _milliseconds, _limit(metric)).ask()
    return arguments


class AskingVerb(Verb):
    """A verb that asks for its arguments where it has none, on a terminal."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self._may_ask():
            args = ask_plan()
            show(f"\ninflight plan {shlex.join(args)}\n(with --html plan.html also a page with sliders)\n")
        return super().parse_args(ctx, args)

    def _may_ask(self) -> bool:
        """Return whether there is a terminal to ask, and no environment variable has answers."""
        given = any(name in os.environ for parameter in self.params for name in variables_of(parameter))
        return not given and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
