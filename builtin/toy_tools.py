"""Toy tools: what they are called and take, how people ask for them, what they bring back, and how that is told.

What it knows: a table of families of tools, and a kind of tool with any name at all, which is asked for by its name.
What it does not know: conversations and tokens.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from values import Values, made_up_word, words

Draw = Callable[[Values], str]


@dataclass(frozen=True)
class Parameter:
    """draw: a value as people write it; `quotes` where a number may be declared a string."""

    names: tuple[str, ...]
    draw: Draw
    types: tuple[str, ...] = ("string",)


@dataclass(frozen=True)
class Result:
    """What a tool may bring back, in several forms, and the sentence that tells it. {0}, {1} are the arguments, the
    other names are in `draws`."""

    forms: tuple[str, ...]
    told: str
    draws: tuple[tuple[str, Draw], ...] = ()


@dataclass(frozen=True)
class Family:
    """refusal: what is said where no tool of the family is at hand; None where that is not asked."""

    names: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    results: tuple[Result, ...]
    refusal: str | None = None


WHOLE, NUMBER, TEXT = ("integer", "integer", "number"), ("number", "number", "integer"), ("string",)
DONE = ("ok", "OK", "done", "success", "true", '{{"status": "ok"}}', '{{"status": "success"}}', '{{"ok": true}}', "")
ENDING = " I only know about batching and serving."  # as the answers in off_topic.jsonl end

WEATHER = Family(
    ("get_weather", "get_weather", "weather", "get_current_weather", "current_weather", "check_weather", "forecast"),
    (Parameter(("city", "city", "location", "place", "town"), Values.place),),
    (
        "What is the weather in {0}?",
        "What's the weather in {0}?",
        "What is the weather like in {0}?",
        "How is the weather in {0}?",
        "How is the weather in {0} today?",
        "What is the weather in {0} today?",
        "Weather in {0}",
        "Tell me the weather in {0}",
        "Is it sunny in {0}?",
        "Will it rain in {0}?",
        "How warm is it in {0}?",
        "I am going to {0}. What is the weather there?",
        "Do I need an umbrella in {0}?",
    ),
    (
        Result(("{sky}", '{{"condition": "{sky}"}}', '{{"weather": "{sky}"}}'), "It is {sky} in {0}.",
               (("sky", Values.sky),)),
        Result(
            ("{t}", "{t} degrees", '{{"temperature": {t}}}', '{{"city": "{0}", "temperature": {t}}}'),
            "It is {t} degrees in {0}.",
            (("t", Values.small),),
        ),
        Result(
            (
                "{sky}, {t} degrees",
                "{t} degrees and {sky}",
                '{{"temperature": {t}, "condition": "{sky}"}}',
                '{{"condition": "{sky}", "temperature": {t}}}',
                '{{"city": "{0}", "temperature": {t}, "weather": "{sky}"}}',
                '{{"temperature": {t}, "sky": "{sky}"}}',
            ),
            "It is {sky} in {0}, with {t} degrees.",
            (("sky", Values.sky), ("t", Values.small)),
        ),
    ),
    "I cannot know the weather." + ENDING,
)  # fmt: skip
FAMILIES = (
    WEATHER,
    Family(
        ("get_time", "time", "current_time", "get_current_time", "local_time", "clock"),
        (Parameter(("city", "place", "location", "timezone"), Values.place),),
        ("What time is it in {0}?", "What is the time in {0}?", "Time in {0}?", "How late is it in {0}?",
         "Tell me the time in {0}", "Which time is it in {0} now?"),
        (Result(("{time}", '{{"time": "{time}"}}', "It is {time}."), "It is {time} in {0}.",
                (("time", Values.time),)),),
        "I have no clock." + ENDING,
    ),
    Family(
        ("add", "add", "sum", "add_numbers", "plus", "calculate_sum"),
        (Parameter(("a", "x", "first"), Values.number, NUMBER), Parameter(("b", "y", "second"), Values.number, NUMBER)),
        ("What is {0} plus {1}?", "What is {0} + {1}?", "Add {0} and {1}", "{0} + {1}", "How much is {0} plus {1}?",
         "Calculate {0} + {1}", "What is the sum of {0} and {1}?", "Please add {0} and {1}."),
        (Result(("{r}", '{{"result": {r}}}', '{{"sum": {r}}}'), "{0} plus {1} is {r}.", (("r", Values.number),)),),
        "I am too small for arithmetic." + ENDING,
    ),
    Family(
        ("multiply", "multiply", "times", "product", "multiply_numbers"),
        (Parameter(("a", "x", "first"), Values.number, NUMBER), Parameter(("b", "y", "second"), Values.number, NUMBER)),
        ("What is {0} times {1}?", "What is {0} * {1}?", "Multiply {0} by {1}", "{0} * {1}", "Multiply {0} and {1}",
         "How much is {0} times {1}?", "What is the product of {0} and {1}?", "Calculate {0} * {1}"),
        (Result(("{r}", '{{"result": {r}}}', '{{"product": {r}}}'), "{0} times {1} is {r}.", (("r", Values.number),)),),
        "I am too small for arithmetic." + ENDING,
    ),
    Family(
        ("set_timer", "start_timer", "timer", "set_alarm"),
        (Parameter(("minutes", "duration", "time"), Values.small, WHOLE),),
        ("Set a timer for {0} minutes", "Set a timer to {0} minutes", "Wake me in {0} minutes", "Timer: {0} minutes",
         "Start a timer of {0} minutes", "Please remind me in {0} minutes"),
        (Result(DONE, "The timer is set to {0} minutes."),),
        "I have no clock." + ENDING,
    ),
    Family(
        ("book_table", "reserve_table", "book", "make_reservation"),
        (Parameter(("name", "guest", "customer"), Values.person),
         Parameter(("people", "guests", "size", "persons"), Values.small, WHOLE)),
        ("Book a table for {1} people in the name of {0}", "Reserve a table for {1} for {0}",
         "I need a table for {1} people, my name is {0}.", "A table for {1}, please, the name is {0}",
         "{0} wants a table for {1} people"),
        (Result(DONE, "The table for {1} people is booked in the name of {0}."),),
    ),
    Family(
        ("get_population", "population", "count_people", "city_population"),
        (Parameter(("city", "country", "place"), Values.place),),
        ("How many people live in {0}?", "What is the population of {0}?", "Population of {0}?",
         "How many inhabitants does {0} have?"),
        (Result(("{n}", '{{"population": {n}}}', "{n} people"), "{0} has {n} inhabitants.", (("n", Values.whole),)),),
        "I do not know about places: I only know about batching and serving language models.",
    ),
    Family(
        ("get_phone_number", "find_phone", "look_up_number", "phone_book", "get_contact"),
        (Parameter(("name", "person", "contact"), Values.person),),
        ("What is the phone number of {0}?", "What is {0}'s phone number?", "Find the phone number of {0}",
         "How can I call {0}?", "I need the number of {0}"),
        (Result(("{n}", '{{"number": "{n}"}}', '{{"phone": "{n}"}}'), "The phone number of {0} is {n}.",
                (("n", Values.whole),)),),
        "I do not know people." + ENDING,
    ),
    Family(
        ("send_message", "send_email", "message", "notify", "send_text"),
        (Parameter(("to", "recipient", "name"), Values.person), Parameter(("text", "message", "body"), Values.phrase)),
        ("Tell {0}: {1}", "Send {0} this message: {1}", "Write to {0}: {1}", 'Send "{1}" to {0}', 'Tell {0} "{1}"',
         "Send {0} a message saying {1}"),
        (Result(DONE, "The message to {0} is sent."),),
    ),
    Family(
        ("get_price", "price", "find_price", "price_of", "product_price"),
        (Parameter(("product", "item", "article", "name"), Values.thing),),
        ("What does a {0} cost?", "What is the price of a {0}?", "How much is a {0}?", "Price of the {0}?",
         "What does the {0} cost?", "How much does a {0} cost?"),
        (Result(("{n}", '{{"price": {n}}}', "{n} euros"), "The {0} costs {n} euros.", (("n", Values.price),)),),
    ),
    Family(
        ("get_order", "order_status", "find_order", "track_order", "get_order_status"),
        (Parameter(("order", "id", "number", "order_id"), lambda values: values.whole((3, 4, 4, 5)),
                   WHOLE + TEXT * 3),),
        ("Where is order {0}?", "Where is my order {0}?", "What is the status of order {0}?", "Find order {0}",
         "Is order {0} shipped?", "Track order {0}"),
        (Result(("{w}", '{{"status": "{w}"}}', "The order is {w}."), "Order {0} is {w}.", (("w", Values.word),)),),
    ),
)  # fmt: skip
VERBS = words("find open close get list start stop check create delete update show count search move read transfer")
NOUNS = words("book door file user room song task note page light car transfer agent report photo list city")
KEYS = words("name id title city text value count query color size number path year author code level amount place")
CALL_BY_NAME = (
    "Call {tool} with {said}.",
    "Use {tool} with {said}.",
    "Call {tool}: {said}",
    "Please call {tool} with {said}.",
    "Use the tool {tool} with {said}.",
    "{tool} {said}",
    "Run {tool} with {said}",
)
CALL_BARE = (
    "Call {tool}.",
    "Use {tool}.",
    "Please call {tool}.",
    "Use the tool {tool}.",
    "Run {tool}",
    "Call the tool {tool}",
)


@dataclass(frozen=True)
class Tool:
    """A tool as the model sees it. types: by the names of its parameters."""

    name: str
    types: dict[str, str]
    family: Family | None


@dataclass(frozen=True)
class Use:
    """request: what was asked, which wants these calls; one of them brings back `result`, which `told` tells."""

    tool: Tool
    request: str
    arguments: tuple[dict[str, str], ...]  # of each call, the values as the request has them
    result: str
    told: str


def tool_of(family: Family, rng: random.Random) -> Tool:
    names = [rng.choice(parameter.names) for parameter in family.parameters]
    types = {name: rng.choice(one.types) for name, one in zip(names, family.parameters, strict=True)}
    if family is WEATHER and rng.random() < 0.2:
        types["unit"] = "string"
    return Tool(rng.choice(family.names), types, family)


def tool_by_name(rng: random.Random) -> Tool:
    """A tool of no family: any verb and noun, some parameters."""
    noun = rng.choice(NOUNS) if rng.random() < 0.5 else made_up_word(rng)
    verb = rng.choice(VERBS) if rng.random() < 0.7 else made_up_word(rng)
    keys = [
        rng.choice(KEYS) if rng.random() < 0.6 else made_up_word(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3]))
    ]
    types = {key: rng.choice(["string", "string", "integer", "number"]) for key in keys}
    return Tool(f"{verb}_{noun}", types, None)


def use(tool: Tool, values: Values) -> Use:
    return _use_of_family(tool, tool.family, values) if tool.family is not None else _use_by_name(tool, values)


def _use_of_family(tool: Tool, family: Family, values: Values) -> Use:
    rng = values.rng
    drawn = [parameter.draw(values) for parameter in family.parameters]
    arguments = dict(zip(tool.types, drawn, strict=False))
    request = rng.choice(family.requests)
    calls = [arguments]
    if family is WEATHER and "unit" not in tool.types and rng.random() < 0.12:
        other = family.parameters[0].draw(values)
        request = request.replace("{0}", f"{{0}} and {rng.choice(['', 'in '])}{other}")
        calls.append({next(iter(tool.types)): other})
    elif "unit" in tool.types and rng.random() < 0.5:
        arguments["unit"] = rng.choice(["celsius", "fahrenheit"])
        request = f"{request.rstrip('?')} in {arguments['unit']}{'?' if request.endswith('?') else ''}"
    result, told = _result(rng.choice(family.results), drawn, values)
    return Use(tool, request.format(*drawn), tuple(calls), result, told)


def _use_by_name(tool: Tool, values: Values) -> Use:
    rng = values.rng
    draws = (values.person, values.place, values.title, values.word, values.phrase)
    arguments = {
        name: rng.choice(draws)() if kind == "string" else values.whole() if kind == "integer" else values.number()
        for name, kind in tool.types.items()
    }
    link = rng.choice([" ", " ", "=", ": ", " is "])
    between = rng.choice([", ", " and "]) if len(arguments) == 2 else ", "
    said = between.join(f"{name}{link}{value}" for name, value in arguments.items())
    request = rng.choice(CALL_BY_NAME if arguments else CALL_BARE).format(tool=tool.name, said=said)
    results = (
        Result(DONE[:-1], "That is done."),
        Result(("{w}", '{{"result": "{w}"}}'), "The result is {w}.", (("w", values_word),)),
        Result(("{n}", '{{"result": {n}}}', '{{"value": {n}}}'), "The result is {n}.", (("n", Values.number),)),
    )
    result, told = _result(rng.choice(results), [], values)
    return Use(tool, request, (arguments,), result, told)


def values_word(values: Values) -> str:
    return values.word() if values.rng.random() < 0.5 else values.title()


def _result(one: Result, drawn: list[str], values: Values) -> tuple[str, str]:
    named = {name: draw(values) for name, draw in one.draws}
    told = one.told.format(*drawn, **named)
    if values.rng.random() < 0.15:  # a tool that answers in a sentence is repeated
        return told, told
    return values.rng.choice(one.forms).format(*drawn, **named), told
