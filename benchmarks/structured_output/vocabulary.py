"""A vocabulary as large and as various as a real one's, made up: what a grammar's masks are computed over.

Bytes; words of syllables with and without a space before them, small, with a capital, and all capitals; letters of
other scripts; numbers; what stands between words in prose, code and JSON, and indentation. Masks depend on which tokens
there are, and not on how a text is cut into them, so that there are no merges.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|endoftext|>"
_ONSETS = (*"bcdfghjklmnprstv", "", "br", "ch", "gr", "qu", "st")
_RIMES = (*"aeiouy", "an", "ar", "en", "er", "es", "ing", "in", "on", "or", "ous", "ly")
_MARKS = """{}[]()<>"':;,.!?=+-*/\\|_#@&%$^~`"""
_SCRIPTS = ((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x0410, 0x044F), (0x0621, 0x064A), (0x00C0, 0x017F), (0x3041, 0x30FE))
_SHARES = (70, 18, 6, 4, 2)


def made_up_tokenizer(size: int) -> str:
    """As tokenizer.json has it, with so many tokens; the last one ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = dict.fromkeys(alphabet)
    drawn = _drawn(random.Random(0))
    while len(words) < size - 1:
        (word, _), *others = byte_level.pre_tokenize_str(next(drawn))
        assert not others
        words[word] = None
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END])
    return str(made.to_str())


def _drawn(chance: random.Random) -> Iterator[str]:
    kinds: tuple[Callable[[random.Random], str], ...] = (_word, _foreign, _punctuation, _spaces, _number)
    while True:
        yield chance.choices(kinds, _SHARES)[0](chance)


def _word(chance: random.Random) -> str:
    syllables = (chance.choice(_ONSETS) + chance.choice(_RIMES) for _ in range(chance.choice((1, 2, 2, 3, 3, 4))))
    word = "".join(syllables)
    word = chance.choice((word, word, word, word.capitalize(), word.upper()))
    return chance.choice(("", " ", " ")) + word


def _foreign(chance: random.Random) -> str:
    first, last = chance.choice(_SCRIPTS)
    return "".join(chr(chance.randint(first, last)) for _ in range(chance.choice((1, 2, 2, 3))))


def _punctuation(chance: random.Random) -> str:
    marks = "".join(chance.choices(_MARKS, k=chance.choice((1, 2, 2, 3, 4))))
    return chance.choice(("", " ")) + marks + chance.choice(("", "", "\n"))


def _spaces(chance: random.Random) -> str:
    return "\n" * chance.randrange(3) + chance.choice((" ", "\t")) * chance.randrange(1, 60)


def _number(chance: random.Random) -> str:
    return "".join(itertools.islice((chance.choice("0123456789") for _ in itertools.count()), chance.randrange(1, 7)))
