"""Judge the errors in sentences at the head of the page: aims that are missed, groups whose intervals hold too few
runs, runs that count otherwise than their row says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.published.comparison import TITLES, Errors, errors_of, groups_of, misfits
from benchmarks.published.measurements import FIGURES, Measurement
from benchmarks.published.prediction import Prediction
from benchmarks.published.rival import Rival

# Of the held-out half: the most that each figure's median error may be, and the p90 of tokens/s; and the least share of
# runs that lie in their interval.
MEDIANS = {"output_tokens_per_s": 0.10, "ttft_ms": 0.25, "tpot_ms": 0.10}
P90, WITHIN = 0.25, 0.80
LARGE = 10  # runs of a group that is spoken of


def verdict(measurements: Sequence[Measurement], ours: Mapping[str, Prediction], rival: Rival) -> str:
    """Return the sentences on all measurements."""
    held_out = [one for one in measurements if one.held_out and not one.doubt]
    parts = [_aims(held_out, ours), _narrow_groups(held_out, ours), _misfits(measurements, ours)]
    return " ".join(filter(None, [*parts, _beside_rival(held_out, ours, rival), _asked(measurements, rival)]))


def _aims(held_out: Sequence[Measurement], ours: Mapping[str, Prediction]) -> str:
    found = {figure: _errors(held_out, ours, figure) for figure in FIGURES}
    missed = [
        f"{TITLES[figure]}'s median error is {found[figure].median:.1%} in place of {most:.0%}"
        for figure, most in MEDIANS.items()
        if found[figure].median > most
    ]
    speed = found[FIGURES[0]]
    if speed.p90 > P90:
        missed.append(f"{TITLES[FIGURES[0]]}'s p90 is {speed.p90:.1%} in place of {P90:.0%}")
    missed += [
        f"{one.within:.0%} of the intervals of {TITLES[figure]} hold theirs"
        for figure, one in found.items()
        if one.within < WITHIN
    ]
    aims = ", ".join(f"{TITLES[figure]} {most:.0%}" for figure, most in MEDIANS.items())
    asked = f"Aims for the held-out half are medians ({aims}), a p90 of tokens/s of {P90:.0%} and intervals that hold "
    return f"{asked}{WITHIN:.0%}: " + (f"missed, {_listed(missed)}." if missed else "all are met.")


def _narrow_groups(held_out: Sequence[Measurement], ours: Mapping[str, Prediction]) -> str:
    found = [(title, _errors(some, ours, FIGURES[0])) for title, some in groups_of(held_out)]
    narrow = sorted((one.within, title) for title, one in found if one.runs >= LARGE and one.within < WITHIN)
    if not narrow:
        return ""
    each = _listed([f"{title} {within:.0%}" for within, title in narrow])
    return f"The share over all hides groups of {LARGE} held-out runs or more whose intervals hold fewer: {each}."


def _misfits(measurements: Sequence[Measurement], ours: Mapping[str, Prediction]) -> str:
    doubted = sum(bool(one.doubt) for one in measurements)
    left_out = (
        f"{doubted} of {len(measurements)} runs are not believed, for the reason beside their source; they count in "
        "neither half, and their errors are in rows of their own."
        if doubted
        else ""
    )
    names = misfits([one for one in measurements if not one.doubt], ours)
    if not names:
        return left_out
    runs = "1 run that was measured does" if len(names) == 1 else f"{len(names)} runs that were measured do"
    return f"{left_out} {runs} not fit into memory as predicted, and count as 100 % off.".strip()


def _beside_rival(held_out: Sequence[Measurement], ours: Mapping[str, Prediction], rival: Rival) -> str:
    typical = {name: one.figures for name, one in ours.items()}
    shared = [one for one in held_out if one.name in rival.figures]
    behind = []
    for figure in FIGURES:
        own, theirs = errors_of(shared, typical, figure), errors_of(shared, rival.figures, figure)
        for name in ("median", "p90"):
            mine, other = getattr(own, name), getattr(theirs, name)
            if mine > other:
                behind.append(f"{name} of {TITLES[figure]} ({other:.1%}, ours {mine:.1%})")
    if not rival.version or not shared:
        return ""
    if not behind:
        return "On the held-out runs that both predict, no median and no p90 of AISimulate's is nearer."
    return f"On the held-out runs that both predict, AISimulate is nearer in the {_listed(behind)}."


def _asked(measurements: Sequence[Measurement], rival: Rival) -> str:
    if not rival.version:
        return ""
    names = {one.name for one in measurements}
    answered, refused = len(names & set(rival.figures)), len(names & set(rival.refused))
    asked = answered + refused
    missing = "" if asked == len(names) else f" {len(names) - asked} runs it was not asked for: their cells are blank."
    said = f"of {asked} runs it answers {answered} and refuses {refused}"
    return (
        f"AISimulate is {rival.version} (asked {rival.date}): {said}, most often for a GPU, a family or timings that "
        f"it lacks.{missing}"
    )


def _errors(measurements: Iterable[Measurement], ours: Mapping[str, Prediction], figure: str) -> Errors:
    return errors_of(measurements, {name: one.figures for name, one in ours.items()}, figure, ours)


def _listed(parts: Sequence[str]) -> str:
    mark = "; " if any("," in one for one in parts) else ", "
    return " and ".join(filter(None, [mark.join(parts[:-1]), parts[-1]]))
