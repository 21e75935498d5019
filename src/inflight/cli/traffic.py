"""Declare the settings of traffic that several verbs share: lengths, arrivals, a trace, limits on latency."""

from __future__ import annotations

import math
from pathlib import Path

import click

from inflight.config.setting import setting
from inflight.workload.arrivals import Arrivals, AtOnce, Poisson, parse_arrivals
from inflight.workload.classes import SharedPrefixes


def prompt_lengths_setting(default: str = "", group: str = "") -> str | None:
    """Declare --input-tokens. default: shown, where nothing is given."""
    return setting(None, f"Tokens of prompts, written as --output-tokens.{_shown(default)}", group, metavar="FORM")


def answer_lengths_setting(default: str = "") -> str | None:
    """Declare --output-tokens. default: shown, where nothing is given."""
    help = f"Tokens of answers: N, uniform:A-B, lognormal:P50:P99, histogram:FILE.{_shown(default)}"
    return setting(None, help, metavar="FORM")


def arrivals_setting() -> str | None:
    """Declare --arrivals."""
    return setting(
        None, "poisson:R, gamma:R:BURSTINESS, constant:R, ramp:A-B:SECONDS, daily:A-B:HOURS.", metavar="FORM"
    )


def seed_setting() -> int:
    """Declare --seed."""
    return setting(0, "Seed of lengths and arrivals.")


def trace_setting(group: str = "") -> Path | None:
    """Declare --trace."""
    return setting(None, "Trace of requests; its format is detected.", group, path="present file")


def classes_setting() -> Path | None:
    """Declare --classes."""
    return setting(None, "TOML file of several kinds of traffic, [classes.NAME] each.", path="present file")


def prefix_tokens_setting() -> int | None:
    """Declare --prefix-tokens."""
    return setting(None, "Tokens that prompts share, before their own.")


def prefix_groups_setting() -> int | None:
    """Declare --prefix-groups."""
    return setting(None, "Number of different shared prefixes.")


def turns_setting() -> str | None:
    """Declare --turns."""
    return setting(None, "Requests of a conversation; of a trace, at most.", metavar="FORM")


def think_setting() -> float | None:
    """Declare --think."""
    return setting(None, "Mean seconds between an answer and the next turn.")


def shared_prefixes(tokens: int | None, groups: int | None) -> SharedPrefixes:
    """Return the prefixes of --prefix-tokens and --prefix-groups."""
    if groups:
        return SharedPrefixes(groups=groups, group_tokens=tokens or 0)
    return SharedPrefixes(system_tokens=tokens or 0)


def slo_setting() -> tuple[str, ...]:
    """Declare --slo."""
    return setting(
        (),
        "Limit: ttft=500, also tpot, itl, itl_max, e2e, in ms. ttft=500(p95): 95 % of requests must meet it; "
        "itl=50(p95): 95 % of each request's gaps; jct: whole conversations (plan, simulate). Several times, or with "
        "commas.",
        metavar="NAME=MS",
    )


def _shown(form: str) -> str:
    return f"  [default: {form}]" if form else ""


def arrivals_of(rate: float | None, form: str | None) -> Arrivals | None:
    """Return the arrivals of --rate, or of --arrivals; None: neither is given. Raises click.UsageError,
    WorkloadError."""
    if rate is not None and form is not None:
        raise click.UsageError(f"--rate {rate:g} and --arrivals {form} both say when requests come; give one of them.")
    if rate is None:
        return None if form is None else parse_arrivals(form)
    return AtOnce() if rate == math.inf else Poisson(rate)
