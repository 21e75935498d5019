"""Demand of several classes of traffic, with shared prefixes and conversations, as workloads of one replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from inflight.planning.conversations import Conversations
from inflight.planning.replica_workload import (
    MAX_CUT_SHARE,
    MAX_REQUEST_TOKENS,
    arrivals,
    at_rate,
    spread_variation,
    with_max_tokens,
)
from inflight.workload.arrivals import Arrivals, Constant, Daily, Gamma, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import Lengths, Stratified
from inflight.workload.synthetic import synthesize
from inflight.workload.workload import Entry, Workload, WorkloadError

SAMPLE_TOKENS = 2e7  # of the prompts that figures are taken from: content ids of long conversations are many
MIN_SAMPLE = 300  # requests
SPARE = 2.0  # times the conversations that are expected to begin, where each waits for the end of another
MAX_OPEN = 400_000  # turns of open conversations of a trial: drawing them takes a few seconds
DRAWN = 0.99  # of these: numbers are rounded
SEEN = 5.0  # times the shared prefixes: of so many requests drawn at random, one in e^5 is the first of its prefix
MAX_SEEN = 400.0  # requests of an engine: of more prefixes some are computed in the measured part, on the safe side
WARM_UP = 1.5  # times between two turns, and to compute the open conversations, after which a run is as it will be


@dataclass(frozen=True)
class Mixed:
    """Requests of classes of traffic; later turns of conversations are requests, too.

    rate: requests/s of all classes and replicas together. classes: with shares of the conversations; own arrivals
    become shares (`of`). gap_variation: of the gaps between conversations, squared CV; 0: they are regular. sessions:
    conversations that are open all the time, where these are asked for; the rate follows from how long they take.
    longest, stretch, prompt_stretch: as of `Drawn`; a conversation ends before a turn that would be longer. e2e:
    seconds of an answer, where workloads begin with open conversations; None: with none. slowdown: times as long as
    the closed form expects that answers were found to take.
    """

    classes: tuple[TrafficClass, ...]
    rate: float
    gap_variation: float = 1.0
    sessions: float | None = None
    longest: int = MAX_REQUEST_TOKENS
    stretch: float = 1.0
    prompt_stretch: float = 1.0
    e2e: float | None = None
    slowdown: float = 1.0

    @classmethod
    def of(cls, classes: Sequence[TrafficClass], arriving: Arrivals | None, longest: int = MAX_REQUEST_TOKENS) -> Mixed:
        """Return the demand of classes. arriving: conversations of those that have a share. Raises WorkloadError."""
        if arriving is None and any(one.share is not None for one in classes):
            raise WorkloadError("--classes has classes with a share of the arrivals; give --rate, or --arrivals.")
        if arriving is not None and all(one.share is None for one in classes):
            raise WorkloadError("Every class of --classes has arrivals of its own; leave --rate and --arrivals out.")
        rate, variation = (0.0, 1.0) if arriving is None else steady_rate(arriving)
        whole = sum(one.share or 0.0 for one in classes)
        begun = {}  # conversations/s by class
        for one in classes:
            own = None if one.arrivals is None else steady_rate(one.arrivals)
            begun[one.name] = rate * (one.share or 0.0) / whole if own is None else own[0]
        if arriving is None:
            most = max((one for one in classes if one.arrivals is not None), key=lambda one: begun[one.name])
            variation = steady_rate(most.arrivals)[1] if most.arrivals is not None else 1.0
        shared = tuple(replace(one, share=begun[one.name], arrivals=None) for one in classes)
        made = cls(shared, 1.0, variation, longest=longest)
        return replace(made, rate=sum(begun.values()) * made.conversations.mean_turns)

    @property
    def mean_rate(self) -> float:
        return self.rate

    @property
    def max_requests(self) -> float:
        return math.inf

    def max_rate(self, e2e: float) -> float:
        """Return the highest requests/s of a workload that is drawn. e2e: seconds of an answer that the closed form
        expects, at most."""
        return (
            DRAWN * MAX_OPEN / self.conversations.seconds(self.slowdown * e2e) if self.waits_for_answers else math.inf
        )

    @cached_property
    def conversations(self) -> Conversations:
        """Return the conversations that the requests are turns of."""
        return Conversations(self.classes)

    @property
    def waits_for_answers(self) -> bool:
        """Whether requests wait for the answers of others, so that their rate follows from how long those take."""
        return self.sessions is not None or self.conversations.have_turns

    @property
    def slowest(self) -> float:
        """Return how many times the mean the answers of the class with the longest ones take."""
        return self.conversations.slowest

    def share_of(self, name: str) -> float:
        """Return the share of a class in the requests."""
        return self.conversations.share_of_requests(name) if name else 1.0

    def with_sessions(self, e2e: float) -> Mixed:
        """Return the demand at the rate at which the conversations that are asked for are open."""
        if self.sessions is None:
            return self
        return replace(self, rate=self.conversations.rate(self.sessions, e2e))

    def started(self, e2e: float) -> Mixed:
        """Return the demand whose workloads begin with the conversations that are open then. e2e: seconds of an answer
        that the closed form expects."""
        return replace(self, e2e=self.slowdown * e2e) if self.waits_for_answers else self

    def reached(self, rate: float, e2e: float, sent: float) -> float:
        """Return the requests/s of a workload that was drawn at a rate: open conversations whose answers come sooner
        send more.

        Args:
            rate: At which it was drawn.
            e2e: Seconds of an answer, as they were.
            sent: Requests/s of its measured part, which count where others begin whether or not one ends.
        """
        if self.e2e is None:
            return rate
        if self.sessions is None:
            return sent
        return self.conversations.rate(self._open(rate, self.e2e), e2e)

    def _open(self, rate: float, e2e: float) -> int:
        """Return the conversations that a workload begins with."""
        return max(1, round(self.conversations.open_at(rate, e2e)))

    def too_many_open(self) -> WorkloadError:
        """Return the error that as many conversations as are asked for are not simulated on one engine."""
        asked = f"--rate is {self.rate / self.conversations.mean_turns:,.4g} conversations/s"
        number, lower = self.conversations.open_at(self.rate, 0.0), "--rate"
        if self.sessions is not None:
            asked, number, lower = f"--sessions is {self.sessions:,.0f}", self.sessions, "--sessions"
        turns = self.conversations.mean_turns
        return WorkloadError(
            f"{asked}, so that {number:,.0f} conversations of {turns:,.3g} turns or more would be open at once, and "
            f"with more than {MAX_OPEN:,} open turns nothing is simulated. Give a lower {lower}, a shorter --think "
            "(think_s of a class), or, as nothing stays cached for so long, single requests of the whole prompt "
            "without --turns."
        )

    def warm_up_requests(self, rate: float, residents: float, cold: float) -> float:
        """Return the requests after which as many are in flight, and as much is cached, as there will be: an engine has
        nothing cached at the beginning, of open conversations and of prefixes that prompts share.

        Args:
            rate: Requests/s of one engine.
            residents: Requests in flight there at once.
            cold: Seconds in which it computes a whole prompt.
        """
        seen = self.cached_after
        if not self.waits_for_answers:
            return seen
        e2e = self.slowdown * residents / rate
        cycles = WARM_UP * self.conversations.seconds(e2e) / self.conversations.mean_turns
        return max(seen, rate * (cycles + WARM_UP * self.conversations.open_at(rate, e2e) * cold))

    @property
    def cached_after(self) -> float:
        """Return the requests after which hardly one has a shared prefix that none before it had."""
        shares = ((one.prefix.groups, self.share_of(one.name)) for one in self.classes)
        return max((min(MAX_SEEN, SEEN * groups / share) for groups, share in shares if share), default=0.0)

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        """Draw requests for one replica; raise WorkloadError where conversations are longer than the model takes."""
        begun = rate / self.conversations.mean_turns
        coming = arrivals(begun, self.gap_variation) if self.gap_variation else Constant(begun)
        if self.e2e is not None:
            return self._started_workload(rate, requests, seed, coming, self.e2e)
        classes = [self._scaled(one) for one in self.classes]
        made = synthesize(classes, arrivals=coming, requests=requests, seed=seed)
        entries, notes = _within(made.entries, self.longest, self.stretch == self.prompt_stretch == 1)
        times = at_rate([one.arrival for one in entries], rate)
        moved = [replace(one, arrival=at) for one, at in zip(entries, times, strict=True)]
        return with_max_tokens(moved, made.name, notes)

    def _started_workload(self, rate: float, requests: int, seed: int, coming: Arrivals, e2e: float) -> Workload:
        """Draw a workload of so many requests, which begins with the conversations that are open, each at a turn of
        chance, within the time between two turns; nothing is sent after its last one begins. Where so many are open all
        the time, each that ends makes room for another."""
        seconds = requests / rate
        number, cycle = self._open(rate, e2e), self.conversations.seconds(e2e) / self.conversations.mean_turns
        begun = math.ceil(rate / self.conversations.mean_turns * seconds)
        if self.sessions is not None:
            begun = number + math.ceil(SPARE * begun)
        drawn = math.ceil(1.2 * (number + begun) * self.conversations.mean_turns) + requests
        classes = [self._scaled(one) for one in self.classes]
        made = synthesize(classes, arrivals=Constant(1.0), requests=drawn, seed=seed)
        entries, notes = _within(made.entries, self.longest, self.stretch == self.prompt_stretch == 1)
        conversations = _conversations(entries)
        chance, times = Random(f"{seed}/open"), coming.times(Random(f"{seed}/begun"))
        taken = []
        for turns in conversations[:number]:
            taken.append((chance.uniform(0, cycle), turns[chance.randrange(len(turns)) :]))
        later = conversations[number : number + begun]
        if self.sessions is None:
            taken += [(next(times), turns) for turns in later]
        taken.sort(key=lambda one: one[0])
        if self.sessions is not None:
            taken += [(0.0, turns) for turns in later]
        found: list[Entry] = []
        for at, turns in taken:
            first = len(found)
            found += [one.moved(at, first + turn - 1 if turn else None) for turn, one in enumerate(turns)]
        sessions = None if self.sessions is None else number
        return replace(with_max_tokens(found, made.name, notes), until=seconds, sessions=sessions)

    def _scaled(self, traffic: TrafficClass) -> TrafficClass:
        """Return a class with lengths of the demand's, drawn evenly."""
        added = traffic.sessions.added and Stratified(Stretched(traffic.sessions.added, self.prompt_stretch))
        return replace(
            traffic,
            input=Stratified(Stretched(traffic.input, self.prompt_stretch)),
            output=Stratified(Stretched(traffic.output, self.stretch)),
            sessions=replace(traffic.sessions, added=added),
        )

    def sample_requests(self, most: int) -> int:
        """Return the requests that figures are taken from: fewer where prompts are long."""
        some = self.workload(self.rate, MIN_SAMPLE, 0).entries
        mean = sum(one.prompt_tokens for one in some) / len(some)
        return max(MIN_SAMPLE, min(most, round(SAMPLE_TOKENS / mean)))

    def burstier(self, factor: float) -> Mixed:
        """Return the demand with gaps of larger variation."""
        return replace(self, gap_variation=(self.gap_variation or 0.25) * factor)

    def spread(self, share: float) -> Mixed:
        """Return the demand whose workloads have the gaps of so large a share of its replicas."""
        return replace(self, gap_variation=spread_variation(self.gap_variation, share))


@dataclass(frozen=True, slots=True)
class Stretched:
    """Lengths times a factor."""

    lengths: Lengths
    factor: float

    def draw(self, rng: Random) -> int:
        return max(1, round(self.factor * self.lengths.draw(rng)))

    def at(self, share: float) -> int:
        return max(1, round(self.factor * self.lengths.at(share)))

    def __str__(self) -> str:
        return f"{self.factor:g} × {self.lengths}" if self.factor != 1 else str(self.lengths)


def steady_rate(coming: Arrivals) -> tuple[float, float]:
    """Return the highest rate of arrivals and their gaps' squared CV. Raises WorkloadError where there is none."""
    match coming:
        case Poisson(rate):
            return rate, 1.0
        case Gamma(rate, burstiness):
            return rate, 1 / burstiness
        case Constant(rate):
            return rate, 0.0
        case Daily(_, high):
            return high, 1.0
        case other:
            raise WorkloadError(
                f"--arrivals {other} is no steady random process, which sizing needs; give --rate, or --arrivals "
                "poisson:R, gamma:R:BURSTINESS, constant:R or daily:LOW-HIGH."
            )


def _conversations(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the turns of each conversation, in the order in which they begin."""
    found: list[list[Entry]] = []
    for one in entries:
        if one.after is None:
            found.append([])
        found[-1].append(one)
    return found


def _within(entries: Sequence[Entry], longest: int, as_asked: bool) -> tuple[list[Entry], tuple[str, ...]]:
    """Leave out turns that are longer than the model takes, and those after them. as_asked: whether lengths are not
    stretched, of which so many must fit. Raises WorkloadError."""
    index_of: dict[int, int] = {}
    found: list[Entry] = []
    for index, one in enumerate(entries):
        follows = one.after is None or one.after in index_of
        if follows and one.prompt_tokens + one.output_tokens <= longest:
            index_of[index] = len(found)
            found.append(one if one.after is None else one.moved(one.arrival, index_of[one.after]))
    left_out = len(entries) - len(found)
    if as_asked and left_out > MAX_CUT_SHARE * len(entries):
        raise WorkloadError(
            f"{left_out / len(entries):.0%} of the requests have more than the {longest:,} tokens of prompt and answer "
            "that the model takes, and the engine would refuse them; ask for shorter ones, for fewer turns, or for a "
            "model that takes more."
        )
    note = f"{left_out / len(entries):.1%} of the requests would be longer than {longest:,} tokens and were left out."
    return found, (note,) if left_out else ()
