"""Classes of traffic: their share, lengths, shared prefixes, conversations and targets; from Python or a TOML file.

    [classes.chat]
    share = 0.8
    input = "lognormal:200:2000"
    output = "lognormal:100:800:1000"
    ttft_ms = 500
    prefix = { system_tokens = 512 }

Shared parts of prompts are named by content ids, which stand for the same tokens (`contents`) in every prompt. An id is
a hash of names, not a count, so that one class's ids do not depend on another's.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from inflight.core.options import check_kind
from inflight.counted import cause_of
from inflight.metrics.observation import Targets
from inflight.workload.arrivals import Arrivals, AtOnce, parse_arrivals
from inflight.workload.lengths import Fixed, Lengths, parse_lengths
from inflight.workload.workload import NO_TARGETS, WorkloadError

T = TypeVar("T")
_SINGLE = Fixed(1)
_SESSION_BLOCK = 1024  # tokens, at most; less where shared prefixes do not end at such a border


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Prefixes that the prompts of a class share; they come before a prompt's own tokens, and are counted beside them.

    Attributes:
        system_tokens: at the beginning of every prompt of the class.
        groups: number of prefixes of group_tokens each, one of which follows.
        skew: how unequally groups are drawn: group k with weight 1/k^skew (Zipf); 0: all alike.
    """

    system_tokens: int = 0
    groups: int = 0
    group_tokens: int = 0
    skew: float = 0.0
    _sums: list[float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("system_tokens", "groups", "group_tokens"):
            if getattr(self, name) < 0:
                raise WorkloadError(f"{name} of a prefix is {getattr(self, name)}; give a whole number from 0.")
        if (self.groups > 0) != (self.group_tokens > 0):
            raise WorkloadError(
                f"A prefix has {self.groups} groups of {self.group_tokens} tokens; give groups and group_tokens both, "
                "or neither."
            )
        if not 0 <= self.skew <= 100:
            raise WorkloadError(f"The skew of prefix groups is {self.skew:g}; give a number from 0 to 100.")
        object.__setattr__(self, "_sums", list(accumulate(k**-self.skew for k in range(1, self.groups + 1))))

    @property
    def tokens(self) -> int:
        """Shared tokens of every prompt."""
        return self.system_tokens + self.group_tokens

    @property
    def block_size(self) -> int:
        """Tokens per content id: the largest number that divides all shared parts; 0 where there are none."""
        return math.gcd(self.system_tokens, self.group_tokens)

    def draw_group(self, rng: Random) -> int:
        return rng.choices(range(self.groups), cum_weights=self._sums)[0] if self.groups else 0

    def ids(self, owner: str, group: int, block_size: int) -> tuple[int, ...]:
        """Return the content ids of the shared parts of a group's prompts. owner: name of the class."""
        system, shared = self.system_tokens // block_size, self.group_tokens // block_size
        return (*_numbered(f"{owner}/system", 0, system), *_numbered(f"{owner}/group/{group}", 0, shared))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Conversations.

    Attributes:
        turns: requests of one conversation.
        think_s: mean time between an answer's end and the next turn, exponentially distributed; 0: at once.
        added: new tokens of each turn after the first; None: as of the first.
    """

    turns: Lengths = _SINGLE
    think_s: float = 0.0
    added: Lengths | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.think_s < math.inf:
            raise WorkloadError(f"think_s of a session is {self.think_s:g}; give seconds from 0.")

    @property
    def several(self) -> bool:
        """Whether a conversation may have more than one turn."""
        return self.turns != _SINGLE

    def draw_think(self, rng: Random) -> float:
        return rng.expovariate(1 / self.think_s) if self.think_s else 0.0


def session_block_size(shared: SharedPrefixes) -> int:
    """Return the tokens per content id of a session's prompts: as many as divide its shared parts."""
    whole = shared.block_size or _SESSION_BLOCK
    return next(size for size in range(min(whole, _SESSION_BLOCK), 0, -1) if whole % size == 0)


def session_ids(session: str, shared: tuple[int, ...], prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """Return the content ids of a session's whole prompt; the prompt's end cuts the last one off. All turns are
    beginnings of one stream, so that each begins with the one before and the made-up answer to it."""
    return (*shared, *_numbered(session, len(shared), math.ceil(prompt_tokens / block_size)))


def _numbered(name: str, start: int, stop: int) -> range:
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return range(first + start, first + stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """A class of traffic.

    Attributes:
        input: new tokens of a prompt, to which shared prefixes and the conversation so far are added.
        output: tokens of an answer.
        share: its part of the mixture's arrivals, relative to the other classes' shares.
        arrivals: its own, in addition to the mixture's, instead of a share. With sessions, each arrival begins one.
        max_tokens: the request's limit; None: the output's length.
    """

    name: str
    input: Lengths
    output: Lengths
    share: float | None = None
    arrivals: Arrivals | None = None
    max_tokens: int | None = None
    lane: str = ""
    tenant: str = ""
    priority: int | None = None
    targets: Targets = NO_TARGETS
    prefix: SharedPrefixes = field(default_factory=SharedPrefixes)
    sessions: Sessions = field(default_factory=Sessions)

    def __post_init__(self) -> None:
        if (self.share is None) == (self.arrivals is None):
            raise WorkloadError(
                f"Class {self.name!r} has the share {self.share} and the arrivals {self.arrivals}; give one of them."
            )
        if self.share is not None and not 0 < self.share < math.inf:
            raise WorkloadError(f"Class {self.name!r} has the share {self.share:g}; give a number above 0.")
        if isinstance(self.arrivals, AtOnce):
            raise WorkloadError(
                f"Class {self.name!r} comes at once, without end; give it a share, or arrivals of a rate."
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise WorkloadError(f"Class {self.name!r} has max_tokens {self.max_tokens}; give a whole number from 1.")

    def __str__(self) -> str:
        part = f"share {self.share:g}" if self.arrivals is None else str(self.arrivals)
        shared = f"{self.prefix.tokens} shared + " if self.prefix.tokens else ""
        turns = f", turns {self.sessions.turns}" if self.sessions.several else ""
        return f"{self.name or 'requests'} ({part}, in {shared}{self.input}, out {self.output}{turns})"


def read_classes(path: Path) -> tuple[TrafficClass, ...]:
    """Read the classes of a TOML file, a table `[classes.NAME]` each. Raises WorkloadError, also for unknown keys."""
    import tomllib  # read when asked for: most plans have no classes

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkloadError(f"The file of classes {path} cannot be read: {cause_of(error)}.") from None
    return parse_classes(tables, str(path))


def parse_classes(tables: Mapping[str, Any], source: str) -> tuple[TrafficClass, ...]:
    """Read classes from parsed TOML. source: its name in errors."""
    classes = _Table(tables, ("classes",), source).values.get("classes")
    if not isinstance(classes, Mapping) or not classes:
        raise WorkloadError(f"{source} has no class of traffic; give one table [classes.NAME] at least.")
    return tuple(_class(name, table, f"{source}, [classes.{name}]") for name, table in classes.items())


_TARGETS = ("ttft_ms", "tpot_ms", "itl_ms", "itl_max_ms", "e2e_ms")
_KEYS = (
    "share", "arrivals", "input", "output", "max_tokens", "lane", "tenant", "priority", *_TARGETS, "prefix", "sessions"
)  # fmt: skip


def _class(name: str, given: Any, where: str) -> TrafficClass:
    table = _Table(given, _KEYS, where)
    for key in ("input", "output"):
        if key not in given:
            raise WorkloadError(f"{where} says no {key} lengths; give {key}, for example {key} = 128.")
    try:
        return TrafficClass(
            name=name,
            share=table.get("share", float),
            arrivals=parse_arrivals(table.get("arrivals", str) or "") if "arrivals" in given else None,
            input=table.lengths("input"),
            output=table.lengths("output"),
            max_tokens=table.get("max_tokens", int),
            lane=table.get("lane", str) or "",
            tenant=table.get("tenant", str) or "",
            priority=table.get("priority", int),
            targets=_targets(table),
            prefix=_prefix(given.get("prefix", {}), f"{where}, prefix"),
            sessions=_sessions(given.get("sessions", {}), f"{where}, sessions"),
        )
    except WorkloadError as error:  # of arrivals, lengths and limits, which do not know the class
        message = str(error)
        raise WorkloadError(message if message.startswith(where) else f"{where}: {message}") from None


def _targets(table: _Table) -> Targets:
    limits = {}
    for key in _TARGETS:
        milliseconds = table.get(key, float)
        if milliseconds is not None:
            if not 0 < milliseconds < math.inf:
                raise WorkloadError(f"{key} is {milliseconds:g}; give milliseconds above 0.")
            limits[key.removesuffix("_ms")] = milliseconds / 1000
    return Targets(**limits)


def _prefix(given: Any, where: str) -> SharedPrefixes:
    table = _Table(given, ("system_tokens", "groups", "group_tokens", "skew"), where)
    counts = {key: table.get(key, int) or 0 for key in ("system_tokens", "groups", "group_tokens")}
    return SharedPrefixes(**counts, skew=table.get("skew", float) or 0.0)


def _sessions(given: Any, where: str) -> Sessions:
    table = _Table(given, ("turns", "think_s", "added"), where)
    return Sessions(
        turns=table.lengths("turns") if "turns" in given else Sessions().turns,
        think_s=table.get("think_s", float) or 0.0,
        added=table.lengths("added") if "added" in given else None,
    )


class _Table:
    """A TOML table with known keys; its errors say where it is."""

    def __init__(self, values: Any, keys: tuple[str, ...], where: str):
        if not isinstance(values, Mapping):
            raise WorkloadError(f"{where} is {values!r}; give a table with {', '.join(keys)}.")
        if unknown := [key for key in values if key not in keys]:
            raise WorkloadError(f"{where} has the unknown key {unknown[0]!r}; known are {', '.join(keys)}.")
        self.values, self._where = values, where

    def get(self, key: str, kind: type[T]) -> T | None:
        value = self.values.get(key)
        if value is None:
            return None
        try:
            check_kind(value, kind)
        except ValueError as error:
            raise WorkloadError(f"{self._where}: {key} {error}") from None
        return cast(T, value)

    def lengths(self, key: str) -> Lengths:
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise WorkloadError(
                f"{self._where}: {key} is {value!r}; give a whole number, or a form of lengths in quotes."
            )
        return parse_lengths(value)
