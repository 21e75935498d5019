"""Guards around plugins: strategies, policies, predictors and drafters that are not ours.

A plugin must never end the engine: its methods are called until one raises, or answers what the scheduler cannot use.
Then one sentence is reported, and a fallback answers instead. A policy or strategy that makes no progress fails, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from inflight.core.estimation.output_length import Predictor, Quantiles
from inflight.core.policies import Policy, Rank
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import NOTHING, Drafter, Proposal
from inflight.core.strategies import StepShape, StepView, Strategy
from inflight.core.types.length_distribution import LengthDistribution, point
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request
from inflight.counted import UNBOUNDED

Report = Callable[[str], None]
Checks = Mapping[str, Callable[..., Any]]
MAX_TEXT = 300  # characters of a plugin's name or error in the sentence
MAX_PREEMPTIONS = 1000  # in a row, before a new token
MAX_WAITS = 100  # in a row, each to its end, before a step
MAX_WAIT_S = 86_400.0
# Of a policy. Those that only spare work (`steady`, `group_ranks_rise`) are not believed.
_POLICY_FLAGS = ("reads_priority", "by_arrival", "reranks_heads", "orders_programs")


class NoProgress(Exception):
    """Valid answers by which no work gets done. The text continues "The policy 'x' …"."""


class Plugin:
    """Call a plugin's methods until one fails, and those of its fallback from then on.

    `name` is the plugin's; other public attributes, unless they are in `checks`, are the fallback's.
    """

    def __init__(self, kind: str, plugin: Any, successor: str, report: Report, fallback: Any, checks: Checks):
        """Guard a plugin.

        Args:
            kind: "strategy", "policy", "predictor" or "drafter".
            plugin: The object whose methods may do anything.
            successor: The fallback's name in the sentence.
            report: Receives the sentence, once.
            fallback: Has all methods in `checks`.
            checks: For each method a function of the plugin and the method's arguments. It calls the method and returns
                the answer to use, or raises.
        """
        self.failed = False
        self.name = _text(lambda: getattr(plugin, "name", type(plugin).__name__))
        self._kind, self._plugin, self._successor, self._report = kind, plugin, successor, report
        self._fallback = fallback
        for method, check in checks.items():
            setattr(self, method, partial(self._call, method, check))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._fallback, name)

    def _call(self, method: str, check: Callable[..., Any], *arguments: Any) -> Any:
        if not self.failed:
            try:
                return check(self._plugin, *arguments)
            except BaseException as error:
                self._fail(method, error)
        return getattr(self._fallback, method)(*arguments)

    def _fail(self, what: str, error: BaseException) -> None:
        """Switch to the fallback; `sys.exit` in a plugin, or a panic of its native code, must not end the engine."""
        if isinstance(error, KeyboardInterrupt):
            raise error  # the user's, not the plugin's
        how = _text(partial(str, error))
        if not isinstance(error, NoProgress):
            how = f"failed in {what} ({type(error).__name__}: {how})"
        self.failed = True
        self._report(f"The {self._kind} {self.name!r} {how}; {self._successor} has taken over.")


def check_whole_number(value: object, minimum: int, maximum: int, what: str) -> None:
    """Raise TypeError or ValueError unless a value is an integer within bounds; `what` names it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{what} is {value}; it must be from {minimum} to {maximum}")


def check_finite_number(value: object, what: str) -> None:
    """Raise TypeError or ValueError unless a value is a finite number; `what` names it."""
    if not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} is {value}; it must be a finite number")


def _text(make: Callable[[], object]) -> str:
    """Return a plugin's name or error as one line; making it may fail, too."""
    try:
        return " ".join(str(make()).split())[:MAX_TEXT]
    except Exception:
        return "it cannot say what"


def guard_policy(policy: Policy, report: Report) -> Policy:
    """Return a policy that answers as the plugin until that fails, and first come, first served afterwards."""
    fallback = _ByArrival()
    preemptions = 0  # since a sequence last had a new token

    def preempted(policy: Policy, view: SequenceView) -> None:
        nonlocal preemptions
        preemptions += 1
        if preemptions >= MAX_PREEMPTIONS:
            raise NoProgress(f"lets sequences preempt each other, {MAX_PREEMPTIONS} times without a new token")
        policy.preempted(view)

    def served(policy: Policy, *tokens: Any) -> None:
        nonlocal preemptions
        preemptions = 0
        policy.served(*tokens)

    checks: Checks = {
        "settings": lambda policy: (
            {name: bool(getattr(policy, name, False)) for name in _POLICY_FLAGS},
            getattr(policy, "window", 0),
        ),
        "rank": lambda policy, view, now: (0, _checked_rank(policy.rank(view, now))),
        "group": lambda policy, view: _Group(policy.group(view)),
        "group_rank": lambda policy, group, now: (0, _checked_rank(policy.group_rank(group.name, now))),
        "may_preempt": lambda policy, waiting, running: bool(policy.may_preempt(waiting, running)),
        "goes_before": lambda policy, waiting, running: bool(
            getattr(policy, "goes_before", policy.may_preempt)(waiting, running)
        ),
        "arrived": lambda policy, view: policy.arrived(view),
        "started": lambda policy, view: policy.started(view),
        "preempted": preempted,
        "served": served,
        "left": lambda policy, view: policy.left(view),
    }
    guard = Plugin("policy", policy, "first come, first served", report, fallback, checks)
    # Read once: other attributes of the guard are those of its fallback.
    flags, window = guard.settings()
    for name, value in flags.items():
        setattr(fallback, name, value)
    fallback.window = window if type(window) is int and window > 0 else 0
    return cast(Policy, guard)


def guard_strategy(strategy: Strategy, fallback: Strategy, report: Report) -> Strategy:
    """Return a strategy that answers as the plugin until that fails, and as `fallback` afterwards."""
    ends: list[float] = []  # of the waits since the last step

    def shape(strategy: Strategy, view: StepView) -> StepShape | WaitUntil:
        answer = strategy.shape(view)
        if not isinstance(answer, WaitUntil):
            return _checked_shape(answer, view)
        end, now = answer.time, view.now
        check_finite_number(end, "the time of WaitUntil")
        if not now < end <= now + MAX_WAIT_S:
            raise ValueError(f"it waits until {end} s, and it is {now} s; it may wait for at most {MAX_WAIT_S:.0f} s")
        if ends and now < ends[-1]:
            ends.pop()  # another wait replaces it before its end
        ends.append(end)
        if len(ends) > MAX_WAITS:
            raise ValueError(f"it has delayed all work {MAX_WAITS} times in a row")
        return answer

    def observe(strategy: Strategy, *step: Any) -> None:
        ends.clear()
        strategy.observe(*step)

    checks: Checks = {"shape": shape, "observe": observe}
    return cast(Strategy, Plugin("strategy", strategy, fallback.name, report, fallback, checks))


def guard_predictor(predictor: Predictor, report: Report) -> Predictor:
    """Return a predictor that answers as the plugin until that fails, and by quantiles afterwards."""
    fallback = Quantiles()

    def lengths(predictor: Any, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        """Take the number that the plugin expects as the length."""
        tokens = predictor.predict(request, max_output_tokens, so_far)
        check_finite_number(tokens, "the expected output")
        if tokens < 0:
            raise ValueError(f"the expected output is {tokens} tokens; it must not be below 0")
        return point(max(so_far + 1, min(math.ceil(tokens), max_output_tokens)))

    def observe(predictor: Predictor, *ended: Any) -> None:
        predictor.observe(*ended)
        fallback.observe(*ended)  # from the start, so that it can take over at any time

    checks: Checks = {"lengths": lengths, "observe": observe}
    return cast(Predictor, Plugin("predictor", predictor, "the quantiles of output lengths", report, fallback, checks))


def guard_drafter(drafter: Drafter, vocab_size: int, report: Report) -> Drafter:
    """Return a drafter that answers as the plugin until that fails, and drafts nothing afterwards."""

    def propose(drafter: Drafter, view: SequenceView, max_drafts: int) -> Proposal:
        token_ids, chances = drafter.propose(view, max_drafts)
        token_ids, chances = tuple(token_ids), tuple(chances)
        if len(token_ids) > max_drafts:
            raise ValueError(f"more than {max_drafts} tokens were drafted")
        if len(chances) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens were drafted with {len(chances)} chances; each has its own")
        for token_id in token_ids:
            check_whole_number(token_id, 0, vocab_size - 1, "a draft")
        for chance in chances:
            check_finite_number(chance, "a chance")
            if not 0 <= chance <= 1:
                raise ValueError(f"a chance is {chance}; it must be from 0 to 1")
        return Proposal(token_ids, chances)

    checks: Checks = {"propose": propose, "finished": lambda drafter, view: drafter.finished(view)}
    no_drafts = SimpleNamespace(propose=lambda view, max_drafts: NOTHING, finished=lambda view: None)
    return cast(Drafter, Plugin("drafter", drafter, "decoding token by token", report, no_drafts, checks))


class _ByArrival(Policy):
    """First come, first served; ranks compare with those of the plugin before, which are (0, rank)."""

    def settings(self) -> tuple[dict[str, bool], int]:
        return {}, 0

    def rank(self, view: SequenceView, now: float) -> Rank:
        return (1, view.arrival)


class _Group:
    """A plugin's group as a key: it is hashed once, here, and equals no other where comparing them fails."""

    def __init__(self, name: Hashable):
        self.name, self._hash = name, hash(name)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        try:
            return self is other or (isinstance(other, _Group) and bool(self.name == other.name))
        except Exception:
            return False


def _checked_shape(shape: Any, view: StepView) -> StepShape:
    """Check that a step can be filled: admitted sequences wait, are named once, and are some if a batch is to begin."""
    if not isinstance(shape, StepShape):
        raise TypeError(f"a shape must be a StepShape or WaitUntil, not {shape!r}")
    check_whole_number(shape.token_budget, 1, UNBOUNDED, "token_budget")
    check_whole_number(shape.row_limit, 1, UNBOUNDED, "row_limit")
    check_whole_number(shape.early_end, 0, UNBOUNDED, "early_end")
    if not isinstance(shape.whole_prompts, bool) or not isinstance(shape.run_to_completion, bool):
        raise TypeError(f"whole_prompts and run_to_completion must be True or False, and the shape is {shape!r}")
    if shape.run_to_completion != (shape.admit is not None) or shape.run_to_completion > shape.whole_prompts:
        raise ValueError("run_to_completion goes with admit and whole_prompts, and admit with run_to_completion")
    if shape.admit is None:
        return shape
    if not isinstance(shape.admit, tuple):
        raise TypeError(f"admit must be a tuple of numbers or None, not {shape.admit!r}")
    for number in shape.admit:
        check_whole_number(number, 0, UNBOUNDED, "a number in admit")
    waiting = {one.number for one in view.waiting.views()}
    if len(set(shape.admit)) < len(shape.admit):
        raise ValueError(f"admit names a sequence twice: {list(shape.admit[:20])}")
    if unknown := [number for number in shape.admit if number not in waiting]:
        raise ValueError(f"admit names {unknown[0]}, which does not wait")
    if waiting and not shape.admit and not view.running:
        raise ValueError(f"admit names no sequence, though nothing runs and {len(waiting)} wait")
    return shape


def _checked_rank(rank: Any) -> Rank:
    if not isinstance(rank, tuple) or not all(isinstance(part, int | float) for part in rank):
        raise TypeError(f"a rank must be a tuple of numbers, not {rank!r}")
    if any(part != part for part in rank):
        raise ValueError(f"a rank must not hold NaN, but is {rank!r}")
    return rank
