"""Prompts of exact length: token ids, or texts that have as many tokens as an entry says.

Equal blocks of a prefix are equal tokens or words. Texts are made of words whose joins do not merge: the tokens of
each word of a list behind another one are measured with the tokenizer; a text is then words up to the number of tokens,
and is corrected until counting agrees. Contents follow from a seed and the entry's index, so that every process of the
client writes the same; those of token ids are made by `workload.contents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from inflight.bench.client_types import BenchError
from inflight.bench.counting import Counter, Messages
from inflight.workload.contents import Contents
from inflight.workload.workload import Entry

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
NOUNS = tuple(_LIST.split())
FIRST = "the"  # of every text; its tokens there are measured with those around a text
_FILLERS = (*" abcdefghijklmnopqrstuvwxyz", *".,;:!?0123456789", " a", " I", " the", " of")  # to correct by one
_CORRECTIONS = 200
_TIMES = 4  # repetitions of a word, to measure its tokens


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """units: words, each with its tokens behind another one. around: tokens that the tokenizer adds to every text."""

    units: tuple[tuple[str, int], ...]
    around: int

    @property
    def single(self) -> tuple[str, ...]:
        return tuple(word for word, cost in self.units if cost == 1)


def learn_words(count: Callable[[str], int], limit: int = len(NOUNS)) -> Vocabulary:
    """Measure words by about 2 × limit calls of `count`. limit: fewer words where counting is a request to a server."""
    sample = " ".join([FIRST] * 3)
    start = count(sample)
    around = start - 3 * (count(f"{sample} {FIRST}") - start)
    units = []
    for word in NOUNS[:limit]:
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
    """Return words of about `tokens` tokens behind others: exactly as many where one of them has one. May be empty."""
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
    """Change the text until it has exactly `tokens` tokens together with `prefix`, by `count`. Raises BenchError."""
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
    """Lengthen by one token if any sign adds exactly one; else by the first that adds more."""
    found: tuple[str, int] | None = None
    for sign in _FILLERS:
        now = count(prefix + text + sign)
        if now == have + 1:
            return text + sign, now
        if now > have and found is None:
            found = (text + sign, now)
    return found or (text + " the", count(prefix + text + " the"))


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Ids that prompts are drawn from: from first to below last, without `avoid`."""

    first: int
    last: int
    avoid: frozenset[int] = frozenset()

    def contents(self, entries: Sequence[Entry], seed: int) -> Contents:
        return Contents(entries, self.last, seed=seed, min_id=self.first, avoid=self.avoid)

    @property
    def some(self) -> list[int]:
        """Return four of them, from both ends."""
        usable = [token for token in range(self.first, self.last) if token not in self.avoid]
        return [usable[place * (len(usable) - 1) // 3] for place in range(4)]


def ordinary(vocab_size: int) -> TokenRange:
    """Return a vocabulary's ids without both ends, where special tokens are."""
    return TokenRange(min(1000, vocab_size // 10), vocab_size - vocab_size // 10)


def continued(contents: Contents, index: int, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the prompt of entry `index` behind the conversation so far, with the entry's length and at least one new
    token."""
    prompt = contents.prompt(index)
    return (*before, *prompt[min(len(before), len(prompt) - 1) :]) if before else prompt


@dataclass(frozen=True)
class TextPrompts:
    """vocabulary: of the model's tokenizer. counter: checks every text; None: lengths follow from the vocabulary, and
    the server's usage shows whether they are right. around: tokens around a prompt's text (beginning token, or the chat
    template with one message). each_turn: around every further turn of a conversation.
    """

    vocabulary: Vocabulary
    seed: int
    around: int
    each_turn: int = 0
    counter: Counter | None = None

    def text(self, index: int, entry: Entry, tokens: int) -> str:
        """Return about `tokens` tokens of content, the entry's prefix first.

        It always begins with the same word, whose tokens without a word before are known.
        """
        parts = [FIRST]
        left = tokens - 1
        for block in entry.prefix:
            if left <= 0:
                break
            size = min(entry.block_size - (len(parts) == 1), left)
            parts.append(write(self.vocabulary, size, Random(f"{self.seed}/block/{block}")))
            left -= size
        if left > 0:
            parts.append(write(self.vocabulary, left, Random(f"{self.seed}/own/{index}")))
        return " ".join(filter(None, parts))

    def completion(self, index: int, entry: Entry, before: str, before_tokens: int) -> str:
        """Return a text behind `before`; together they have the entry's tokens."""
        if before:
            entry = _alone(entry)
        fresh = " " * bool(before) + self.text(index, entry, self._left(entry, before_tokens or self.around))
        if self.counter is None or entry.prompt_tokens <= self.around:
            return fresh
        if before and self.counter.text(before) >= entry.prompt_tokens:
            return fresh
        return corrected(fresh, entry.prompt_tokens, self.counter.text, before)

    def chat(self, index: int, entry: Entry, before: Messages, before_tokens: int) -> str:
        """Return the content of the user's next message."""
        if before:
            entry = _alone(entry)
        overhead = before_tokens + self.each_turn if before else self.around
        fresh = self.text(index, entry, self._left(entry, overhead))
        if self.counter is None or entry.prompt_tokens <= self.around:
            return fresh
        counter = self.counter
        shortest = counter.chat([*before, {"role": "user", "content": "a"}])
        if shortest is None or shortest >= entry.prompt_tokens:
            return fresh

        def count(content: str) -> int:
            return counter.chat([*before, {"role": "user", "content": content}]) or 0

        return corrected(fresh, entry.prompt_tokens, count)

    @staticmethod
    def _left(entry: Entry, taken: int) -> int:
        return max(entry.prompt_tokens - taken, 1)


def _alone(entry: Entry) -> Entry:
    """Return a later turn without its prefix, which is the conversation itself."""
    return replace(entry, prefix=())
