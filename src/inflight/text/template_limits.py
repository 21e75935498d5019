"""Bound the results of a template's operations (operators, methods of strings, filters) before they are computed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from inflight.text.errors import ChatTemplateError
from inflight.text.template_budget import Budget

_PERCENT = r"%(?:%|(?:\(\w*\))?[-+ #0]*(\d{0,3})(?:\.(\d{0,3}))?[sdifgerxX])"
_BRACES = r"\{\{|\}\}|\{\w*(?::(?:[^{}]?[<>=^])?[-+ ]?#?0?(\d{0,3})[,_]?(?:\.(\d{1,3}))?[bcdeEfFgGnosxX%]?)?\}"
_PERCENT_FIELD, _BRACES_FIELD = re.compile(_PERCENT, re.ASCII), re.compile(_BRACES, re.ASCII)
_PERCENTS, _BRACED = (
    re.compile(rf"(?:[^%]++|{_PERCENT})*+", re.ASCII),
    re.compile(rf"(?:[^{{}}]++|{_BRACES})*+", re.ASCII),
)
_LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_SLOW_CHARACTERS_A_UNIT = 64
_LONGEST_ATTRIBUTE = 256  # characters of "function.name"; each part is a look-up for each entry
_CASES = ("capitalize", "casefold", "lower", "swapcase", "title", "upper")
_CLASSES = (
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper"),
)
_BY_CHARACTER = (*_CASES, *_CLASSES)  # nanoseconds for each, where other operations go through a text by the kilobyte
_SLOW_SEARCHES = ("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition")
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        (
            *_BY_CHARACTER,
            *_SLOW_SEARCHES,
            *("center", "count", "endswith", "find", "format", "index", "join", "ljust", "partition", "removeprefix"),
            *("removesuffix", "replace", "rjust", "rsplit", "split", "splitlines", "startswith", "zfill"),
        )
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    float: frozenset(("is_integer",)),
}
# Filters that do not look at the whole of a value, and those that look at its entries but not into them.
_SMALL = ("length", "count", "first", "last", "default", "d", "attr")
_OF_ENTRIES = ("map", "select", "reject", "selectattr", "rejectattr", "reverse", "items")

Arguments = Sequence[Any]
Named = Mapping[str, Any]


def before_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Charge an operator. Raises ChatTemplateError if the result would be too large."""
    for value in (left, right):
        if isinstance(value, int):
            budget.allow_bits(value.bit_length())
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str) and isinstance(other, int):
                budget.allow(len(one) * max(0, other))
            elif isinstance(one, list | tuple) and isinstance(other, int):
                budget.allow_items(len(one) * max(0, other))
                budget.allow(budget.measure(one) * max(0, other))
        if isinstance(left, int) and isinstance(right, int):
            budget.allow_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        budget.allow_bits(max(1, left.bit_length()) * max(0, right))
    elif operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            budget.allow(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.allow_items(len(left) + len(right))
    elif operator == "%" and isinstance(left, str):
        _before_percent(budget, left, right)


def before_method(budget: Budget, owner: Any, name: str, arguments: Arguments, named: Named) -> Arguments:
    """Charge a method call; return the arguments, with one-time iterables converted to lists."""
    if not any(isinstance(owner, kind) and name in names for kind, names in _METHODS.items()):
        kind = owner if isinstance(owner, type) else type(owner)
        raise ChatTemplateError(
            f"The model's chat template calls the method {name[:40]!r} of {kind.__name__}, which is none that "
            "templates may call here; correct the template."
        )
    if name != "get":  # everything else looks at all of it
        budget.charge(owner)
    if isinstance(owner, str) and name == "join" and arguments:
        return (_joined(budget, arguments[0], len(owner)), *arguments[1:])
    for value in (*arguments, *named.values()):
        budget.allow_number(value)
        budget.measure(value)  # searched for, hashed or reported in an error
    if isinstance(owner, str) and name in _BY_CHARACTER:
        budget.spend(len(owner) // _SLOW_CHARACTERS_A_UNIT)
    elif isinstance(owner, str) and (check := _OF_STRINGS.get(name)) is not None:
        check(budget, owner, arguments, named)
    return arguments


def before_call(budget: Budget, arguments: Arguments, named: Named) -> None:
    """Charge a call of anything that is neither a method of Python's types nor a macro."""
    for value in (*arguments, *named.values()):
        budget.measure(value)


def before_filter(budget: Budget, name: str, value: Any, named: Named, rest: Arguments = ()) -> Any:
    """Charge a filter; return the value, with a one-time iterable converted to a list.

    Args:
        budget: Of the rendering.
        name: Of the filter.
        value: Its input.
        named: Arguments by the filter's parameter names.
        rest: Further arguments.
    """
    if name not in _SMALL:
        budget.charge(value)
    if name not in ("default", "d"):
        for given in (*rest, *named.values()):
            budget.allow_number(given)
    attribute = rest[0] if rest and name in ("selectattr", "rejectattr") else named.get("attribute")
    if isinstance(attribute, str) and len(attribute) > _LONGEST_ATTRIBUTE:
        raise ChatTemplateError(
            f"The model's chat template names an attribute of {len(attribute):,} characters; at most "
            f"{_LONGEST_ATTRIBUTE} are allowed; correct the template."
        )
    if name == "format":
        _before_percent(budget, budget.text(value), dict(named) if named else tuple(rest))
        return value
    if name in _SMALL or name in _OF_ENTRIES:
        return value
    return _OF_FILTERS.get(name, _whole_filter)(budget, value, named)


def before_loop(budget: Budget, value: Any) -> Any:
    """Charge a loop with a test, also for the entries that the test skips; return the entries."""
    if isinstance(value, str):
        budget.spend(len(value))
        return value
    return budget.charge(value) if isinstance(value, list | tuple | dict) else _listed(budget, value)


def before_case(budget: Budget, value: Any) -> str:
    """Charge a change or test of a text's case; return the text."""
    text = budget.text(value)
    budget.spend(len(text) // _SLOW_CHARACTERS_A_UNIT)
    return text


def before_search(budget: Budget, value: Any) -> Any:
    """Charge a search by `in`; return the container."""
    if isinstance(value, Mapping):  # by hash
        budget.spend(1)
        return value
    if isinstance(value, Iterable) and not isinstance(value, str | list | tuple):
        value = _listed(budget, value)
    budget.measure(value)
    return value


# -- formats --------------------------------------------------------------------------------------------------------
def _before_percent(budget: Budget, pattern: str, values: Any) -> None:
    fields, widths = _fields(budget, pattern, _PERCENTS, _PERCENT_FIELD)
    each = 1 if isinstance(values, tuple) else fields  # one value, or one mapping's, may stand in all of them
    budget.allow(len(pattern) + widths + each * budget.measure(values))


def _before_braces(budget: Budget, pattern: str, arguments: Arguments, named: Named) -> None:
    fields, widths = _fields(budget, pattern, _BRACED, _BRACES_FIELD)
    largest = max(map(budget.measure, (*arguments, *named.values())), default=0)
    budget.allow(len(pattern) + widths + fields * largest)


def _fields(budget: Budget, pattern: str, allowed: re.Pattern[str], field: re.Pattern[str]) -> tuple[int, int]:
    """Return the number of fields, and the sum of their widths and precisions."""
    budget.spend(len(pattern) // _SLOW_CHARACTERS_A_UNIT)
    budget.allow_items(pattern.count("%") + pattern.count("{"))
    if not allowed.fullmatch(pattern):
        raise ChatTemplateError(
            f"The model's chat template formats by {pattern[:40]!r}, which is none of the plain fields "
            "({}, {name}, %s, %(name)s, with widths of at most three digits) that are allowed; correct the template."
        )
    fields = widths = 0
    for found in field.finditer(pattern):
        fields += 1
        widths += sum(int(width) for width in found.groups() if width)
    return fields, widths


# -- methods and filters ----------------------------------------------------------------------------------------------
def _before_replace(budget: Budget, owner: str, arguments: Arguments, named: Named) -> None:
    old, new = (*arguments, "", "")[:2]
    if isinstance(old, str) and isinstance(new, str):
        places = owner.count(old) if old else len(owner) + 1
        budget.allow(len(owner) + places * max(0, len(new) - len(old)))


def _before_split(budget: Budget, owner: str, arguments: Arguments, named: Named) -> None:
    separator = arguments[0] if arguments else named.get("sep")
    if isinstance(separator, str) and separator:
        budget.allow_items(owner.count(separator) + 1)
    elif len(owner) // 2 + 1 > budget.max_items:
        budget.allow_items(len(owner.split(None, budget.max_items)))
    budget.spend(len(owner) // _SLOW_CHARACTERS_A_UNIT)


def _before_rsplit(budget: Budget, owner: str, arguments: Arguments, named: Named) -> None:
    _before_split(budget, owner, arguments, named)
    _before_slow_search(budget, owner, arguments, named)


def _before_slow_search(budget: Budget, owner: str, arguments: Arguments, named: Named) -> None:
    """Charge a search from the end, or for a set of characters: Python may compare each pair of characters."""
    for given in (*arguments, *named.values()):
        if isinstance(given, str):
            budget.spend(len(owner) * len(given) // 1024)


def _line_ends(text: str) -> int:
    return sum(text.count(end) for end in _LINE_ENDS)


def _joined(budget: Budget, values: Any, between: int) -> list[Any]:
    found = _listed(budget, values)
    budget.allow(sum(map(budget.measure, found)) + between * len(found))
    return found


def _listed(budget: Budget, values: Any) -> list[Any]:
    if isinstance(values, str | list | tuple | Mapping | range):
        budget.allow_items(len(values))
    found: list[Any] = []
    for value in values:
        budget.spend(1)
        found.append(value)
    budget.allow_items(len(found))
    return found


def _listed_by_attribute(budget: Budget, value: Any, named: Named) -> Any:
    """Return the entries of a filter with an attribute; only mappings' attributes have a known size."""
    found = _listed(budget, value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value
    if named.get("attribute") is not None and not all(isinstance(one, Mapping) for one in found):
        raise ChatTemplateError(
            "The model's chat template asks a filter for an attribute of what are no mappings; correct the template."
        )
    return found


def _join_filter(budget: Budget, value: Any, named: Named) -> Any:
    between = budget.measure(named.get("d", ""))
    if not isinstance(value, Iterable):
        return value
    if isinstance(value, Mapping):  # its keys
        value = list(value)
    return _joined(budget, _listed_by_attribute(budget, value, named), between)


def _indent_filter(budget: Budget, value: Any, named: Named) -> Any:
    width = named.get("width", 4)
    text = budget.text(value)
    budget.allow(len(text) + (_line_ends(text) + 2) * (len(width) if isinstance(width, str) else int(width)))
    return value


def _replace_filter(budget: Budget, value: Any, named: Named) -> Any:
    _before_replace(budget, budget.text(value), [budget.text(named.get(one, "")) for one in ("old", "new")], {})
    return value


def _json_filter(budget: Budget, value: Any, named: Named) -> Any:
    indent = named.get("indent")
    width = len(indent) if isinstance(indent, str) else indent if isinstance(indent, int) else 0
    budget.allow(budget.measure(value, max(0, width) + budget.measure(named.get("separators"))))
    return value


def _compared_filter(budget: Budget, value: Any, named: Named) -> Any:
    found = _listed_by_attribute(budget, value, named)
    budget.measure(found)
    return found


def _sum_filter(budget: Budget, value: Any, named: Named) -> Any:
    if not isinstance(named.get("start", 0), int | float):
        raise ChatTemplateError("The model's chat template sums what are no numbers; correct the template.")
    return _listed_by_attribute(budget, value, named)


def _round_filter(budget: Budget, value: Any, named: Named) -> Any:
    precision = named.get("precision", 0)
    if isinstance(precision, int) and abs(precision) > 100:
        raise ChatTemplateError(f"The model's chat template rounds to {precision} digits; at most 100 are allowed.")
    return value


def _title_filter(budget: Budget, value: Any, named: Named) -> Any:
    text = before_case(budget, value)
    budget.allow_items(len(text))  # a list of words, as Jinja does it
    return text


def _trim_filter(budget: Budget, value: Any, named: Named) -> Any:
    _before_slow_search(budget, budget.text(value), (), named)
    return value


def _whole_filter(budget: Budget, value: Any, named: Named) -> Any:
    budget.measure(value)
    return value


_OF_STRINGS: dict[str, Callable[[Budget, str, Arguments, Named], None]] = {
    "replace": _before_replace,
    "split": _before_split,
    "rsplit": _before_rsplit,
    "splitlines": lambda budget, owner, arguments, named: budget.allow_items(_line_ends(owner) + 1),
    "format": _before_braces,
    **dict.fromkeys(_SLOW_SEARCHES, _before_slow_search),
}
_OF_FILTERS: dict[str, Callable[[Budget, Any, Named], Any]] = {
    "join": _join_filter,
    "list": lambda budget, value, named: _listed(budget, value) if isinstance(value, Iterable) else value,
    "indent": _indent_filter,
    "replace": _replace_filter,
    "tojson": _json_filter,
    "sum": _sum_filter,
    "round": _round_filter,
    "title": _title_filter,
    **dict.fromkeys(("lower", "upper", "capitalize"), lambda budget, value, named: before_case(budget, value)),
    "trim": _trim_filter,
    **dict.fromkeys(("sort", "unique", "min", "max", "dictsort"), _compared_filter),
}
