"""Questions of `inflight plan` without arguments, on a terminal: model, GPU, traffic and limits, each checked."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from inflight.cli.summary import show
from inflight.cli.verb import Verb, variables_of
from inflight.metrics.slo import parse_slos
from inflight.models.known import read_model
from inflight.planning.slos import check_slos
from inflight.simulate.hardware import find_gpu
from inflight.workload.lengths import parse_lengths

CHAT = ("lognormal:1020:4142", "lognormal:129:601")  # tokens of prompts and answers in Azure's conversation trace


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
        except (ValueError, OSError) as error:
            raise click.UsageError(str(error)) from None
        return answer.strip()


def _rate_or_trace(answer: str) -> None:
    try:
        found = float(answer)
    except ValueError:
        if not Path(answer).is_file():
            raise ValueError(f"{answer!r} is neither a number nor a file.") from None
        return
    if not 0 < found < math.inf:
        raise ValueError(f"{answer} is not a rate: it must be above 0, and finite.")


def _milliseconds(answer: str) -> None:
    if answer != "none":
        check_slos(parse_slos([f"ttft={answer}"]))


def _limit(metric: str) -> Callable[[str], list[str]]:
    return lambda answer: [] if answer == "none" else ["--slo", f"{metric}={answer}"]


def ask_plan() -> list[str]:
    """Ask for a deployment; return the arguments that mean it. Raises click.Abort."""
    show("Without options `inflight plan` asks for them; an empty answer takes what stands in brackets.")
    arguments = TerminalQuestion(
        "Model (a name, a folder or a config.json)", "llama-3.1-8b", read_model, lambda answer: ["--model", answer]
    ).ask()
    arguments += TerminalQuestion("GPU", "h100", find_gpu, lambda answer: ["--hardware", answer]).ask()
    (traffic,) = TerminalQuestion(
        "Requests per second at the busiest time, or a trace's file", "10", _rate_or_trace, lambda answer: [answer]
    ).ask()
    if Path(traffic).is_file():
        arguments += ["--trace", traffic]
    else:
        arguments += ["--rate", traffic]
        for name, usual in zip(("input", "output"), CHAT, strict=True):
            of = "prompts" if name == "input" else "answers"
            form = TerminalQuestion(
                f"Tokens of {of} (a number, or lognormal:MEDIAN:P99)",
                usual,
                parse_lengths,
                lambda answer, name=name: [f"--{name}-tokens", answer],  # type: ignore[misc]
            )
            arguments += form.ask()
    for metric, of, usual in (("ttft", "Time to the first token", "1000"), ("tpot", "Time per further token", "50")):
        text = f"{of} that 99 % of the requests keep, in ms (none: no limit)"
        arguments += TerminalQuestion(text, usual, _milliseconds, _limit(metric)).ask()
    return arguments


class AskingVerb(Verb):
    """A verb that asks for its arguments where it has none, on a terminal."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and self._may_ask():
            args = ask_plan()
            show(f"\ninflight plan {shlex.join(args)}\n")
        return super().parse_args(ctx, args)

    def _may_ask(self) -> bool:
        """Return whether there is a terminal to ask, and no environment variable has answers."""
        given = any(name in os.environ for parameter in self.params for name in variables_of(parameter))
        return not given and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
