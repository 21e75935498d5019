"""The index of suffix drafting in plain Python: the definition, whose drafts the compiled index has too.

It holds texts of token ids, of which the last still grows and the oldest is forgotten first. It serves where nothing is
compiled, at ten times the memory and twenty times the time.

A text's next tokens are guessed from matches: positions where its last tokens stood before, in its own or another
index. The longest of the runs of 1, 3 or 8 last tokens that is found gives the 16 newest positions where it ended; of
these, the ones that agree with the text's end furthest back count. What followed most of them is drafted, then what
followed those that agree with it. Compare: prompt lookup decoding, which copies from the first match, and
SuffixDecoding (arXiv 2411.04975), which counts in a suffix tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

LEVELS = (1, 3, 8)  # more of them, or other ones, bring no more right drafts on prose, code and edits of code
DEPTH = 32  # tokens that are compared at most
MAX_MATCHES = 16  # of an index that are compared
MIN_CHANCE = 0.05  # that all drafts are right; further ones are not worth a look
MAX_POSITIONS = 600_000_000  # of tokens and ends of texts in the life of an index, which counts them in 32 bits
BOUNDARY = NOWHERE = -1


def chance_of(count: int, matches: int, alike: int) -> float:
    """Return the chance that a token is right: `count` of the matches go on with it, all alike for `alike` tokens.

    Counts have a doubt of 3 / alike, and a third of a match is discounted where they disagree (absolute discounting,
    Ney, Essen and Kneser 1994). Over English prose, Python and edits of it, a chance was never more than 0.1 off: a
    single match is right 1 in 4 times after one token, and 9 in 10 after 32."""
    return (3 * count - (count < matches)) * alike / (3 * matches * alike + 9)


class Match(NamedTuple):
    source: ReferenceIndex
    position: int  # of the last token that is alike
    alike: int  # tokens


class ReferenceIndex:
    bytes_per_token = 600  # an index takes about so many for each token, and bytes_alone
    bytes_alone = 2_000

    def __init__(self) -> None:
        self._tokens: list[int] = []  # all texts, each with a boundary behind it; those before _front are forgotten
        self._front = 0
        self._text = 0  # where the last one begins
        self._dropped = 0  # positions that were before the list's first
        self._size = 0
        self._last: dict[tuple[int, ...], int] = {}  # run → where it ended last
        self._before: list[tuple[int, ...]] = []  # of each position and level, where its run ended before, or NOWHERE

    def __len__(self) -> int:
        return self._size

    @property
    def room(self) -> int:
        """Return how many more tokens and ends of texts the index can take in its life."""
        return MAX_POSITIONS - self._dropped - len(self._tokens)

    @property
    def nbytes(self) -> int:
        """Return about how many bytes it takes."""
        return self.bytes_alone + self.bytes_per_token * len(self)

    def append(self, token_ids: Sequence[int]) -> None:
        """Extend the last text. Raises ValueError for more tokens than there is room for."""
        if len(token_ids) > self.room:
            raise ValueError(
                f"{len(token_ids)} tokens are too many for an index that takes {self.room} more in its life; "
                "begin another"
            )
        for token_id in token_ids:
            self._tokens.append(token_id)
            runs = self._runs(self._end - 1, self._text)
            self._before.append(tuple(self._last.get(run, NOWHERE) for run in runs))
            self._last.update(dict.fromkeys(runs, self._end - 1))
        self._size += len(token_ids)

    def end_text(self) -> None:
        """End the last text: tokens that are appended later begin another one."""
        if self._text < self._end:
            self._tokens.append(BOUNDARY)
            self._before.append(())
            self._text = self._end

    def drop_text(self) -> int:
        """Forget the oldest text, and return how many tokens it had."""
        start = position = self._front
        while position < self._end and self._token(position) != BOUNDARY:
            for run in self._runs(position, start):
                if self._last[run] == position:
                    del self._last[run]
            position += 1
        self._front = min(position + 1, self._end)
        self._text = max(self._text, self._front)
        del self._tokens[: self._front - self._dropped], self._before[: self._front - self._dropped]
        self._dropped = self._front
        self._size -= position - start
        return position - start

    def propose(self, others: ReferenceIndex | None, most: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return at most `most` tokens that may follow the last text's last token, and for each the chance that it is
        right if those before it are: from what followed that token in this index and in `others`."""
        matches = [*self._matches(self), *(others._matches(self) if others is not None else ())]
        alike = max((match.alike for match in matches), default=0)
        matches = [match for match in matches if match.alike == alike]
        drafts: list[int] = []
        chances: list[float] = []
        all_right = 1.0
        while len(drafts) < most:
            follows = [self._follows(match, drafts) for match in matches]
            counts = Counter(token_id for token_id in follows if token_id != BOUNDARY)
            if not counts:
                break
            best, count = counts.most_common(1)[0]
            chance = chance_of(count, counts.total(), min(alike + len(drafts), DEPTH))
            all_right *= chance
            if all_right < MIN_CHANCE:
                break
            matches = [match for match, token_id in zip(matches, follows, strict=True) if token_id == best]
            drafts.append(best)
            chances.append(chance)
        return tuple(drafts), tuple(chances)

    # -- inside -------------------------------------------------------------------------------------------------
    @property
    def _end(self) -> int:
        """The position that is appended to next."""
        return self._dropped + len(self._tokens)

    def _token(self, position: int) -> int:
        return self._tokens[position - self._dropped]

    def _runs(self, position: int, start: int) -> list[tuple[int, ...]]:
        """Return the runs that end at a position of the text that begins at `start`, the shortest first."""
        end = position + 1 - self._dropped
        return [tuple(self._tokens[end - level : end]) for level in LEVELS if position + 1 - start >= level]

    def _matches(self, text: ReferenceIndex) -> list[Match]:
        """Return where the longest run of the text's last tokens ended before in this index, newest first."""
        found: list[int] = []
        for level, run in enumerate(text._runs(text._end - 1, text._text)):
            newest = self._before[-1][level] if text is self else self._last.get(run, NOWHERE)
            if not (matches := list(islice(self._chain(newest, level), MAX_MATCHES))):
                break
            found = matches
        return [Match(self, position, self._alike(text, position)) for position in found]

    def _chain(self, position: int, level: int) -> Iterator[int]:
        while position >= self._front:
            yield position
            position = self._before[position - self._dropped][level]

    def _alike(self, text: ReferenceIndex, position: int) -> int:
        """Return how many tokens up to the text's end and up to a position here are the same, up to DEPTH."""
        most = min(DEPTH, text._end - text._text, position + 1 - self._front)
        pairs = ((self._token(position - back), text._token(text._end - 1 - back)) for back in range(most))
        return next((back for back, (one, other) in enumerate(pairs) if one != other), most)

    def _follows(self, match: Match, drafts: Sequence[int]) -> int:
        """Return the token that follows a match and the drafts behind it; the drafts follow the text's end."""
        position, end = match.position + 1 + len(drafts), match.source._end
        if position < end:
            return match.source._token(position)
        return drafts[position - end] if match.source is self else BOUNDARY
