"""Exercises in copying: rows that can only be completed by looking back.

What it knows: how to make rows whose second part repeats or looks up what the first part said, in random tokens and in
made-up words. What it does not know: any text or tool. Calls and JSON answers need heads that find a value in the
prompt and repeat it; `copying_heads.py` makes them, and these rows keep and tune them.
"""

import random
from collections.abc import Iterator

from rows import Encoder, Row
from tokens import CALL_MARKS, SPECIAL_TOKENS, VOCABULARY
from values import Values, made_up_word

FIRST_TOKEN = len(SPECIAL_TOKENS) + len(CALL_MARKS)


def repeated(rng: random.Random) -> Row:
    """A run of random tokens, some others, and the run again."""
    run = [rng.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(rng.randrange(4, 24))]
    between = [rng.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(rng.randrange(0, 12))]
    return Row([*run, *between, *run], [0.0] * (len(run) + len(between) + 1) + [1.0] * (len(run) - 1))


def looked_up(rng: random.Random) -> Row:
    """Pairs of random tokens, then the pairs again in another order: what stood behind the first of each?"""
    pairs = [rng.sample(range(FIRST_TOKEN, VOCABULARY), rng.choice([2, 2, 3])) for _ in range(rng.randrange(2, 9))]
    tokens = [token for pair in pairs for token in pair]
    weights = [0.0] * len(tokens)
    for pair in rng.sample(pairs, len(pairs)):
        tokens += pair
        weights += [0.0] + [1.0] * (len(pair) - 1)
    return Row(tokens, weights)


def quoted(encoder: Encoder, rng: random.Random) -> Row:
    """Names and values in a sentence, then in the spelling of JSON, where a word begins without a space."""
    values = Values(rng)
    draws = [values.person, values.title, values.number, values.number, values.word, values.phrase]
    facts = [(made_up_word(rng), rng.choice(draws)()) for _ in range(rng.randrange(1, 5))]
    sentence = ", ".join(f"{name} {rng.choice(['is', 'of', 'in', 'for'])} {value}" for name, value in facts)
    tokens = encoder.encode(sentence + "\n")
    weights = [0.0] * len(tokens)
    for name, value in rng.sample(facts, rng.randrange(1, len(facts) + 1)):
        asked = encoder.encode(f'{{"{name}": ')
        said = encoder.encode((value if value[0].isdigit() else f'"{value}"') + "}\n")
        tokens += asked + said
        weights += [0.0] * len(asked) + [1.0] * len(said)
    return Row(tokens, weights)


def exercises(encoder: Encoder, share_of_words: float, rng: random.Random) -> Iterator[Row]:
    """Without end. Words are harder than tokens, so their share grows."""
    while True:
        if rng.random() < share_of_words:
            yield quoted(encoder, rng)
        else:
            yield (repeated if rng.random() < 0.5 else looked_up)(rng)
