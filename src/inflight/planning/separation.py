"""Compare replicas that all classes of traffic share with replicas of each class's own."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from inflight.planning.candidate import Candidate
from inflight.planning.mixture import Mixed
from inflight.planning.question import Question
from inflight.planning.sizing import candidate_for, measure
from inflight.planning.trial_runner import TrialRunner


class SeparateClass(Struct, frozen=True):
    """A class on replicas of its own. rate: its requests/s. replicas: that it takes; None: it meets its SLOs at no
    rate."""

    traffic: str
    rate: float
    replicas: int | None


def class_names(question: Question) -> tuple[str, ...]:
    """Return the classes that share the replicas; none where there is one."""
    demand = question.demand
    if not isinstance(demand, Mixed) or len(demand.classes) < 2:
        return ()
    return tuple(one.name for one in demand.classes)


def separate_class(runner: TrialRunner, best: Candidate, name: str) -> SeparateClass:
    """Size a class alone on the chosen machine, with its own SLOs and those of all classes, by short trials."""
    question, demand = runner.question, runner.question.demand
    assert isinstance(demand, Mixed)
    rate = demand.rate * demand.share_of(name)
    alone = replace(demand, classes=tuple(one for one in demand.classes if one.name == name), rate=rate)
    slos = tuple(replace(slo, traffic="") for slo in question.slos if slo.traffic in ("", name))
    asked = replace(question, demand=alone, slos=slos, gpus=None)
    traffic = asked.traffic_of(alone)
    candidate = candidate_for(asked, traffic, best.machine, question.overrides)
    found = measure(runner.asking(asked, traffic), candidate, is_rough=True)
    return SeparateClass(name, rate, found.replicas(alone) if found.rate else None)
