"""Facts in a sentence, asked for in JSON.

What it knows: sentences with values in them, what their values may be called, and ways to ask for an object of them.
What it does not know: tokens.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rows import Message
from values import Values

Draw = Callable[[Values], str]


@dataclass(frozen=True)
class Kind:
    """fields: by the names in the sentences; for each its possible keys, the usual one first, and how it is drawn."""

    name: str
    fields: Mapping[str, tuple[tuple[str, ...], Draw]]
    sentences: tuple[str, ...]


KINDS = (
    Kind(
        "person",
        {
            "name": (("name", "person", "full_name", "first_name"), Values.person),
            "age": (("age", "years"), Values.small),
            "city": (("city", "town", "home", "location"), Values.place),
            "job": (("job", "profession", "work", "occupation"), Values.job),
        },
        (
            "{name} is {age} and lives in {city}",
            "{name} is {age} years old and lives in {city}",
            "{name} is {age} years old",
            "{name} is {age}",
            "{name}, {age}, {city}",
            "{name}, {age} years old, works as a {job} in {city}",
            "{name} is a {job} from {city}",
            "{name} is a {job} and {age} years old",
            "{name} works as a {job} and lives in {city}",
            "My name is {name}, I am {age} and I live in {city}",
            "My name is {name} and I am {age} years old",
            "I am {name}, a {job} in {city}",
            "In {city} lives {name}, a {job} of {age} years",
            "I met {name} from {city}, who is {age}",
            "The {job} {name} is {age} years old",
        ),
    ),
    Kind(
        "order",
        {
            "name": (("name", "customer", "buyer"), Values.person),
            "item": (("item", "product", "article"), Values.thing),
            "count": (("quantity", "count", "number", "amount"), Values.small),
            "price": (("price", "cost", "total"), Values.price),
        },
        (
            "{name} ordered the {item}, {count} pieces",
            "{name} bought {count} pieces of {item} for {price} euros",
            "{name} bought a {item} for {price} euros",
            "{count} pieces of {item} for {name}",
            "Please send {count} pieces of {item} to {name}",
            "{name} paid {price} for a {item}",
        ),
    ),
    Kind(
        "product",
        {
            "item": (("product", "item", "name"), Values.thing),
            "color": (("color", "colour"), Values.colour),
            "price": (("price", "cost"), Values.price),
        },
        (
            "The {color} {item} costs {price} euros",
            "The {item} costs {price}",
            "The {item} is {color} and costs {price} euros",
            "A {color} {item} for {price} euros",
        ),
    ),
    Kind(
        "book",
        {
            "title": (("title", "book", "name"), Values.title),
            "author": (("author", "writer"), Values.person),
            "year": (("year", "published"), lambda values: values.whole((4,))),
        },
        (
            "{title} was written by {author} in {year}",
            "{author} wrote {title} in {year}",
            "{author} is the author of {title}",
            "In {year} {author} published {title}",
            "{title} is a book by {author} from {year}",
        ),
    ),
    Kind(
        "city",
        {
            "city": (("city", "name", "town"), Values.place),
            "country": (("country", "state"), Values.country),
            "people": (("population", "people", "inhabitants"), Values.whole),
        },
        (
            "{city} is a city in {country} with {people} inhabitants",
            "{city} in {country} has {people} people",
            "{people} people live in {city}",
            "{city} lies in {country}",
            "{city} is the capital of {country}",
        ),
    ),
    Kind(
        "event",
        {
            "event": (("event", "name", "title"), Values.title),
            "day": (("day", "date"), Values.day),
            "city": (("city", "place", "location"), Values.place),
            "time": (("time", "start", "hour"), Values.time),
        },
        (
            "The {event} is on {day} in {city}",
            "{event} takes place in {city} on {day} at {time}",
            "{event} begins at {time} on {day}",
            "We meet in {city} on {day} at {time}",
        ),
    ),
)
NUMBERS = ("age", "count", "price", "year", "people")
WITH_KEYS = (
    "{fact}. Answer in JSON with the keys {keys}.",
    "{fact}. Answer in JSON with {keys}.",
    "{fact}. Give {keys} as JSON.",
    "{fact}. Give me {keys} in JSON.",
    "Extract {keys} as JSON: {fact}.",
    "Give me JSON with {keys}: {fact}.",
    "{fact}. Return a JSON object with the keys {keys}.",
    "Return JSON with the keys {keys}.\n{fact}.",
    "Keys: {keys}. Text: {fact}. Answer in JSON.",
    "{fact}.\nAnswer in JSON, keys: {keys}.",
)
WITHOUT_KEYS = (
    "{fact}. Answer in JSON.",
    "{fact}. Answer as JSON.",
    "Extract the {kind}: {fact}.",
    "Extract the {kind} as JSON: {fact}.",
    "Extract the {kind} from this text: {fact}.",
    "Write this as JSON: {fact}.",
    "{fact}. Give me this in JSON.",
    "{fact}. Extract the {kind}.",
    "Extract: {fact}",
    "{fact}.",
)
SYSTEM_WITH_KEYS = (
    "Answer in JSON with the keys {keys}.",
    "Extract {keys} as JSON.",
    "Return a JSON object with the keys {keys}.",
    "You answer in JSON. Keys: {keys}.",
)


def fact_in_json(values: Values) -> list[Message]:
    rng = values.rng
    kind = rng.choice(KINDS[:1] * 3 + KINDS)
    sentence = rng.choice(kind.sentences)
    names = sorted(
        (name for name in kind.fields if f"{{{name}}}" in sentence), key=lambda n: sentence.index(f"{{{n}}}")
    )
    drawn = {name: kind.fields[name][1](values) for name in names}
    fact = sentence.format(**drawn)
    way = rng.random()
    if way < 0.35:
        messages = [Message("user", rng.choice(WITHOUT_KEYS).format(fact=fact, kind=kind.name))]
        return [*messages, _answer({kind.fields[name][0][0]: (name, drawn[name]) for name in names})]
    asked = rng.sample(names, rng.randrange(1, len(names) + 1)) if rng.random() < 0.5 else names
    keys = {_key(kind.fields[name][0], rng): (name, drawn[name]) for name in asked}
    if way < 0.85:
        messages = [Message("user", rng.choice(WITH_KEYS).format(fact=fact, keys=_listed([*keys], rng)))]
    else:
        system = rng.choice(SYSTEM_WITH_KEYS).format(keys=_listed([*keys], rng))
        messages = [Message("system", system), Message("user", fact + rng.choice(["", "."]))]
    return [*messages, _answer(keys)]


def _answer(keys: Mapping[str, tuple[str, str]]) -> Message:
    """A number is written as the sentence wrote it."""
    members = [
        f"{json.dumps(key)}: {value if name in NUMBERS else json.dumps(value)}" for key, (name, value) in keys.items()
    ]
    return Message("assistant", f"{{{', '.join(members)}}}", 1.0)


def _key(keys: tuple[str, ...], rng: random.Random) -> str:
    return keys[0] if rng.random() < 0.6 else rng.choice(keys)


def _listed(keys: list[str], rng: random.Random) -> str:
    mark = '"' if rng.random() < 0.2 else ""
    words = [f"{mark}{key}{mark}" for key in keys]
    if len(words) > 1 and rng.random() < 0.7:
        return f"{', '.join(words[:-1])} and {words[-1]}"
    return ", ".join(words)
