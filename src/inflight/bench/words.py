"""Texts of an exact number of tokens, written in words whose joins do not merge.

Learns from a tokenizer, whichever it is, what each word of a list costs behind another word; a text is then words until
the number is reached, and is corrected until counting agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from inflight.bench.client_types import BenchError

_LIST = """
time people year way day man thing world life hand part child eye woman place work week case point company number
group problem fact water room mother area money story month lot right study book word business issue side kind
head house service friend father power hour game line end member law car city community name team minute idea body
back parent face level office door health person art war history party result change morning reason research girl
guy moment air teacher force education foot boy age policy process music market sense nation plan college interest
death experience effect use class control field development role effort rate heart drug show leader light voice
wife police mind price report decision son view relation town road arm difference value building action season
society tax director position player record paper space ground form event official matter center couple site
project activity star table need court oil situation cost industry figure street image phone data picture practice
piece land product doctor wall patient worker news test movie north love support technology step baby computer
type attention film tree source
"""
WORDS = tuple(_LIST.split())
FIRST = "the"  # that texts begin with; what it costs there is learnt with what comes around
_FILLERS = (*" abcdefghijklmnopqrstuvwxyz", *".,;:!?0123456789", " a", " I", " the", " of")  # to correct by one
_CORRECTIONS = 200
_TIMES = 4  # that a word is repeated to learn what it costs


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """units: words, each with the tokens that it costs behind another one. around: tokens that the tokenizer adds to
    every text."""

    units: tuple[tuple[str, int], ...]
    around: int

    @property
    def single(self) -> tuple[str, ...]:
        return tuple(word for word, cost in self.units if cost == 1)


def learn_words(count: Callable[[str], int], most: int = len(WORDS)) -> Vocabulary:
    """Asks `count` about 2 × most times; most: fewer words where counting is a question to a server."""
    sample = " ".join([FIRST] * 3)
    start = count(sample)
    around = start - 3 * (count(f"{sample} {FIRST}") - start)
    units = []
    for word in WORDS[:most]:
        cost, rest = divmod(count(sample + f" {word}" * _TIMES) - start, _TIMES)
        if not rest and cost > 0:
            units.append((word, cost))
    if not units:
        raise BenchError(
            "The tokenizer cuts the same word differently each time, so that texts of exact length cannot be written; "
            "use token ids (--endpoint completions)."
        )
    cheapest = min(cost for _, cost in units)
    return Vocabulary(tuple(unit for unit in units if unit[1] <= max(2, cheapest)), max(around, 0))


def write(vocabulary: Vocabulary, tokens: int, random: Random) -> str:
    """Words of about `tokens` tokens behind others: exactly as many where one of them costs one. May be empty."""
    text: list[str] = []
    left = tokens
    cheapest = min(cost for _, cost in vocabulary.units)
    while left >= cheapest:
        word, cost = vocabulary.units[random.randrange(len(vocabulary.units))]
        if cost <= left:
            text.append(word)
            left -= cost
    return " ".join(text)


def corrected(text: str, tokens: int, count: Callable[[str], int], prefix: str = "") -> str:
    """The text, until `prefix` and it together have exactly `tokens` tokens by `count`. Raises BenchError."""
    have = count(prefix + text)
    for _ in range(_CORRECTIONS):
        if have == tokens:
            return text
        if have > tokens:
            text, have = _shorter(text, have - tokens, prefix, count)
        else:
            text, have = _longer(text, prefix, have, count)
    raise BenchError(
        f"No text of exactly {tokens} tokens was found with this tokenizer (the nearest has {have}); use token ids "
        "(--endpoint completions), or a tokenizer that belongs to the model."
    )


def _shorter(text: str, by: int, prefix: str, count: Callable[[str], int]) -> tuple[str, int]:
    cut = max(1, by // 2) if " " in text else 0
    text = " ".join(text.split(" ")[:-cut]) if cut else text[: max(1, len(text) - max(1, by // 2))]
    return text, count(prefix + text)


def _longer(text: str, prefix: str, have: int, count: Callable[[str], int]) -> tuple[str, int]:
    """By one token if any sign brings exactly one; else by what the first brings more."""
    found: tuple[str, int] | None = None
    for sign in _FILLERS:
        now = count(prefix + text + sign)
        if now == have + 1:
            return text + sign, now
        if now > have and found is None:
            found = (text + sign, now)
    return found or (text + " the", count(prefix + text + " the"))
