"""Names of GPUs and processors as people, clouds and drivers write them: RTX4090, H100-SXM5, NVIDIA H100 80GB HBM3."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from inflight.counted import did_you_mean

# Words that makers and drivers add to a name, and that name no other card.
_ADDED = frozenset(
    (
        *("nvidia", "amd", "intel", "apple", "corporation", "geforce", "tesla", "quadro", "instinct", "radeon"),
        *("generation", "edition", "graphics", "gpu", "oam", "vf", "platinum", "cpu", "core", "processor", "w"),
        *("hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr6x", "gddr7"),
    )
)
_SHOWN = 3  # names that an unknown one is answered with
_SIZES = (0.88, 1.05)  # a card's size by name, as a share of the memory that its driver reports


def spelled(name: str) -> str:
    """Return a name as data sheets spell it."""
    return re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").removeprefix("amd-")


def find_name(name: str, known: Callable[[str], float | None]) -> str | None:
    """Return the first form of a name that is known; None where none is. known: the GB of a GPU by its name."""
    for form in _forms(name):
        if known(form) is not None:
            return form
    *begin, size = _words(name)
    for form in ("-".join(begin), "-".join(word for word in begin if word != "sxm")):
        memory = known(form) if size.isdigit() else None
        if memory is not None and _SIZES[0] <= int(size) / memory <= _SIZES[1]:
            return form
    return None


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean …?` with the nearest known names of the same kind; "" where none is."""
    parts, names = _words(re.sub(r"^\d+ ?x ?(?=[a-z])", "", name.strip().lower())), sorted(known, key=len)
    models = {word for word in parts if re.fullmatch(r"[a-z]+\d+[a-z]*|\d{4}[a-z]*", word)}
    same = [one for one in names if models.intersection(one.split("-"))]
    if same:
        shorter = [one for one in same if set(one.split("-")) <= set(parts)]
        return did_you_mean("-".join(parts), shorter or same, _SHOWN) or f" Did you mean {(shorter or same)[0]}?"
    return did_you_mean("-".join(parts), [one for one in names if _letters(one) == _letters(parts[0])], _SHOWN)


def _forms(name: str) -> Iterator[str]:
    yield spelled(name)
    parts = _words(name)
    yield "-".join(parts)
    yield "-".join(word for word in parts if word != "sxm")


def _words(name: str) -> list[str]:
    """Return a name's words without those that are added, sizes as numbers, and SXM without its version."""
    plain = re.sub(r"\((r|tm)\)|\d+-core|:[a-z:+-]*$|mac(book)? ?(pro|air|mini|studio)", " ", name.lower())
    plain = re.sub(r"\b(rtx|epyc|xeon)(?=\d)", r"\1-", plain)
    plain = re.sub(r"(\d) (?=gi?b\b)", r"\1", plain)
    parts = (re.sub(r"^(\d+)g(i?b)?$", r"\1", word) for word in re.split(r"[\s_/+-]+", plain))
    parts = (re.sub(r"^sxm\d$", "sxm", word) for word in parts)
    return [word for word in parts if word and word not in _ADDED] or [""]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z].*", "", name)
