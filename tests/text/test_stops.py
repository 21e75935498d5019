"""The stop finder against a search of all the text after every character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.text import StopStringFinder

# Few letters, so that beginnings repeat and stop strings overlap.
letters = st.sampled_from("aab😀")
stop_tuples = st.lists(st.text(letters, min_size=1, max_size=5), max_size=4).map(tuple)
delta_lists = st.lists(st.text(letters, max_size=4), max_size=12)


def run(deltas: list[str], stops: tuple[str, ...], include: bool = False) -> tuple[list[str], str | None]:
    finder = StopStringFinder(stops, include)
    pieces = [finder.push(delta)[0] for delta in deltas]
    return [*pieces, finder.flush()], finder.matched


def search(text: str, stops: tuple[str, ...], include: bool) -> tuple[str, str | None]:
    """The definition: the match that ends first, of those the one that began first."""
    for end in range(1, len(text) + 1):
        ending_here = [stop for stop in stops if text[:end].endswith(stop)]
        if ending_here:
            stop = max(ending_here, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def held_back(text: str, stops: tuple[str, ...]) -> int:
    return max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)


@given(deltas=delta_lists, stops=stop_tuples, include=st.booleans())
def test_finds_what_a_search_of_the_whole_finds(deltas: list[str], stops: tuple[str, ...], include: bool) -> None:
    pieces, matched = run(deltas, stops, include)
    assert ("".join(pieces), matched) == search("".join(deltas), stops, include)


@given(deltas=delta_lists, stops=stop_tuples)
def test_holds_back_no_more_and_no_less_than_it_must(deltas: list[str], stops: tuple[str, ...]) -> None:
    finder = StopStringFinder(stops)
    text = given_so_far = ""
    for delta in deltas:
        text += delta
        safe, matched = finder.push(delta)
        given_so_far += safe
        if matched is not None:
            break
        assert given_so_far == text[: len(text) - held_back(text, stops)]


@given(deltas=delta_lists, stops=stop_tuples)
def test_stops_that_stay_in_the_text_hold_nothing_back(deltas: list[str], stops: tuple[str, ...]) -> None:
    finder = StopStringFinder(stops, include_in_output=True)
    for delta in deltas:
        safe, matched = finder.push(delta)
        if matched is not None:
            break
        assert safe == delta


@pytest.mark.parametrize(
    ("deltas", "stops", "pieces", "matched"),
    [
        (["Hello wor", "ld STO", "P now"], ("STOP",), ["Hello wor", "ld ", "", ""], "STOP"),
        (["ST", "ART"], ("STOP",), ["", "START", ""], None),
        (["ends with S"], ("STOP",), ["ends with ", "S"], None),
        (["aa", "ab"], ("aab",), ["", "a", ""], "aab"),
        (["abc"], ("abc", "b"), ["a", ""], "b"),
        (["xbc"], ("c", "bc"), ["x", ""], "bc"),
        (["\n", "\nUser:"], ("\n\nUser:", "\n\n\n"), ["", "", ""], "\n\nUser:"),
        (["das Ende 😀", "!"], ("😀!",), ["das Ende ", "", ""], "😀!"),
        (["anything"], (), ["anything", ""], None),
    ],
)
def test_examples(deltas: list[str], stops: tuple[str, ...], pieces: list[str], matched: str | None) -> None:
    assert run(deltas, stops) == (pieces, matched)


def test_nothing_follows_a_match() -> None:
    finder = StopStringFinder(("b",))
    assert finder.push("abc") == ("a", "b")
    assert finder.push("more") == ("", "b")
    assert (finder.flush(), finder.matched) == ("", "b")


@given(before=delta_lists, after=delta_lists, stops=stop_tuples)
def test_only_text_that_may_stop_completes_a_stop(before: list[str], after: list[str], stops: tuple[str, ...]) -> None:
    finder = StopStringFinder(stops)
    pieces = [finder.push(delta, may_stop=False)[0] for delta in before]
    assert finder.matched is None
    pieces += [finder.push(delta)[0] for delta in after]
    text, free = "".join(before + after), len("".join(before))
    matches = [
        (end, -len(stop), stop) for stop in stops for end in range(free + 1, len(text) + 1) if text[:end].endswith(stop)
    ]
    if matches:
        end, _, stop = min(matches)
        assert (finder.matched, "".join(pieces)) == (stop, text[: end - len(stop)])
    else:
        assert (finder.matched, "".join(pieces) + finder.flush()) == (None, text)


def test_flushing_ends_what_had_begun() -> None:
    finder = StopStringFinder(("ab",))
    assert (finder.push("a")[0], finder.flush(), finder.push("b")) == ("", "a", ("b", None))


def test_refuses_stops_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="Stop string 1 of 2 is empty"):
        StopStringFinder(("a", ""))
    with pytest.raises(ValueError, match="not as the one string"):
        StopStringFinder("END")
