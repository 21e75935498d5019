"""Values to be copied: names, places, words and numbers, some of which are kept for measuring.

What it knows: how to draw a value, and which ones training never sees. What it does not know: what they are asked for.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"] + [
    "an", "ar", "el", "en", "er", "in", "is", "on", "or", "um", "th", "sh", "st", "ing", "berg", "ton", "ville", "ford",
]  # fmt: skip
PEOPLE = words(
    "Anna Ben Carla David Emma Felix Grace Hugo Irene Jack Karen Leo Maria Nina Oscar Paula Quentin Rosa Simon Tina "
    "Uma Victor Wendy Xavier Yara Zoe Alice Bob Charlie Diana Erik Fatima George Helen Ivan Julia Kevin Laura Martin "
    "Nora Oliver Peter Robert Sarah Thomas Ursula Vera William Ahmed Chen Jason John Jane Mary Mia Noah Lucas Sofia"
)
PLACES = words(
    "Lyon Paris London Berlin Rome Madrid Oslo Vienna Prague Lisbon Dublin Athens Warsaw Helsinki Zurich Geneva Milan "
    "Turin Porto Seville Hamburg Munich Bonn Bergen Tokyo Osaka Kyoto Seoul Delhi Mumbai Cairo Lagos Nairobi Boston "
    "Chicago Denver Seattle Toronto Montreal Lima Quito Bogota Sydney Perth Auckland Dakar Tunis Beirut Istanbul "
    "Ankara Kyiv Riga Tallinn Vilnius Krakow Ghent Bruges Utrecht Leiden Basel Graz Nice Nantes Lille Bristol Leeds"
)
COUNTRIES = words(
    "France Germany Italy Spain Norway Sweden Finland Poland Austria Greece Ireland Portugal Japan Korea India Egypt "
    "Kenya Nigeria Canada Mexico Peru Chile Brazil Australia Turkey Ukraine Latvia Estonia Belgium Denmark Iceland"
)
THINGS = words(
    "lamp chair table bottle jacket bag book phone camera bicycle clock mirror pencil guitar basket carpet pillow "
    "apple lemon candle ladder kettle blanket helmet wallet transfer cup plate spoon shirt shoe hat scarf desk sofa"
)
JOBS = words("baker teacher nurse pilot farmer painter doctor driver singer lawyer cook tailor sailor writer plumber")
COLOURS = words("red green blue yellow black white brown grey orange purple pink")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SKIES = words("sunny cloudy rainy windy foggy snowy clear stormy dry warm cold")
KEPT_BACK = 6  # one value of so many is for measuring alone


def is_kept_back(value: str) -> bool:
    return zlib.crc32(value.lower().encode()) % KEPT_BACK == 0


def made_up_word(rng: random.Random) -> str:
    return "".join(rng.choices(SYLLABLES, k=rng.choice([2, 2, 3, 3, 4])))


@dataclass(frozen=True)
class Values:
    """Draws values. unseen: those that are kept back, where true; else all others."""

    rng: random.Random
    unseen: bool = False

    def person(self) -> str:
        name = self._name(PEOPLE)
        return f"{name} {self._name(PEOPLE)}" if self.rng.random() < 0.15 else name

    def place(self) -> str:
        name = self._name(PLACES)
        return f"{self.rng.choice(['New', 'San', 'Port', 'North'])} {name}" if self.rng.random() < 0.06 else name

    def country(self) -> str:
        return self._name(COUNTRIES)

    def title(self) -> str:
        words = [self._kept(lambda: made_up_word(self.rng).capitalize()) for _ in range(self.rng.choice([1, 1, 2]))]
        return " ".join(["The", *words] if self.rng.random() < 0.3 else words)

    def thing(self) -> str:
        return self._word(THINGS)

    def job(self) -> str:
        return self._word(JOBS)

    def colour(self) -> str:
        return self._word(COLOURS, 0.2)

    def sky(self) -> str:
        return self._word(SKIES, 0.2)

    def day(self) -> str:
        return self.rng.choice(DAYS)

    def word(self) -> str:
        """In lower case."""
        return self._word(THINGS + JOBS + COLOURS)

    def phrase(self) -> str:
        """A few words in lower case."""
        return " ".join(self.word() for _ in range(self.rng.choice([2, 3, 4])))

    def whole(self, digits: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 5)) -> str:
        """A whole number, each count of digits as likely as it is listed."""
        count = self.rng.choice(digits)
        draw = lambda: str(self.rng.randrange(10 ** (count - 1), 10**count))  # noqa: E731
        return draw() if count == 1 else self._kept(draw)

    def number(self) -> str:
        whole = self.whole((1, 2, 2, 3, 3, 4))
        return f"{whole}.{self.rng.randrange(10)}{self.rng.randrange(1, 10)}" if self.rng.random() < 0.12 else whole

    def price(self) -> str:
        return f"{self.whole((1, 2, 2, 3))}.{self.rng.randrange(10, 100)}" if self.rng.random() < 0.6 else self.whole()

    def small(self) -> str:
        return self.whole((1, 2))

    def time(self) -> str:
        return self._kept(lambda: f"{self.rng.randrange(24)}:{self.rng.randrange(60):02}")

    def _name(self, known: tuple[str, ...]) -> str:
        """A known name or, more often, one that nobody bears."""
        if self.rng.random() < 0.4:
            return self._kept(lambda: self.rng.choice(known))
        return self._kept(lambda: made_up_word(self.rng).capitalize())

    def _word(self, known: tuple[str, ...], made_up: float = 0.4) -> str:
        if self.rng.random() < made_up:
            return self._kept(lambda: made_up_word(self.rng))
        return self._kept(lambda: self.rng.choice(known))

    def _kept(self, draw: Callable[[], str]) -> str:
        while is_kept_back(value := draw()) != self.unseen:
            pass
        return value
