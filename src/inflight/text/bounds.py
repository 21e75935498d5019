"""How much what a template asks of Python would make: operators, methods of strings, filters.

Knows each operation that makes much of little, and says its size to a budget before it is done. Does not know where in
a template it stands (`sandbox`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .budget import Budget
from .errors import ChatTemplateError

_WIDEST = 10_000  # of a field in a format
_FIELD = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")
_BRACES_WIDTH = re.compile(r"\{[^{}]*:[^{}]*?(\d{5,})")
_NESTED_BRACES = re.compile(r"\{[^{}]*:[^{}]*\{")
_SMALL = (
    "length",
    "count",
    "first",
    "last",
    "default",
    "d",
    "attr",
)  # filters that do not look at the whole of a value
_LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")

Arguments = Sequence[Any]
Named = Mapping[str, Any]


def before_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raises ChatTemplateError where the result would be too large."""
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | bytes) and isinstance(other, int):
                budget.allow(len(one) * max(0, other))
            elif isinstance(one, list | tuple) and isinstance(other, int):
                budget.allow_items(len(one) * max(0, other))
                budget.allow(budget.measure(one) * max(0, other))
        if isinstance(left, int) and isinstance(right, int):
            budget.allow_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        budget.allow_bits(max(1, left.bit_length()) * max(0, right))
    elif operator == "+":
        if isinstance(left, str | bytes) and isinstance(right, str | bytes):
            budget.allow(len(left) + len(right))
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.allow_items(len(left) + len(right))
    elif operator == "%" and isinstance(left, str | bytes):
        _before_percent(budget, left if isinstance(left, str) else left.decode("latin-1"), right)


def before_method(budget: Budget, owner: Any, name: str, arguments: Arguments, named: Named) -> Arguments:
    """The arguments, of which an iterable that is used up by looking at it has become a list."""
    if name != "get":  # everything else looks at all of it
        budget.charge(owner)
    for value in (*arguments, *named.values()):
        budget.allow_number(value)
    if isinstance(owner, str | bytes):
        check = _OF_STRINGS.get(name)
        if name == "join" and arguments:
            arguments = (_joined(budget, arguments[0], len(owner)),)
        elif check is not None:
            check(budget, owner, arguments, named)
    elif isinstance(owner, list | tuple) and name in ("count", "index"):
        for value in arguments:
            budget.measure(value)
    elif isinstance(owner, Mapping) and arguments:
        budget.measure(arguments[0])  # to be hashed
    return arguments


def before_filter(budget: Budget, name: str, value: Any, arguments: Arguments, named: Named) -> Any:
    """The value, which has become a list where looking at it uses it up."""
    if name not in _SMALL:
        budget.charge(value)
    if name not in ("default", "d"):
        for given in (*arguments, *named.values()):
            budget.allow_number(given)
    check = _OF_FILTERS.get(name)
    return value if check is None else check(budget, value, arguments, named)


# -- formats --------------------------------------------------------------------------------------------------------
def _before_percent(budget: Budget, pattern: str, values: Any) -> None:
    fields = 0
    for field in _FIELD.finditer(pattern):
        fields += 1
        for width in field.groups():
            if width == "*" or (width and int(width[:9]) > _WIDEST):
                raise ChatTemplateError(_too_wide(field[0]))
    if isinstance(values, tuple):
        each = sum(budget.measure(value) for value in values)
        budget.allow(len(pattern) + fields * _WIDEST + each if _has_width(pattern) else len(pattern) + each)
    else:
        largest = max(map(budget.measure, values.values()), default=0) if isinstance(values, Mapping) else 0
        budget.allow(len(pattern) + fields * max(largest, budget.measure(values)))


def _has_width(pattern: str) -> bool:
    return any(any(field.groups()) for field in _FIELD.finditer(pattern))


def _before_braces(budget: Budget, pattern: str, arguments: Arguments, named: Named) -> None:
    if wide := _BRACES_WIDTH.search(pattern):
        raise ChatTemplateError(_too_wide(wide[0][:40]))
    values = [*arguments, *named.values()]
    if _NESTED_BRACES.search(pattern) and any(isinstance(value, int) and abs(value) > _WIDEST for value in values):
        raise ChatTemplateError(_too_wide("{:{}}"))
    values += [one for value in values if isinstance(value, Mapping) for one in value.values()]
    largest = max(map(budget.measure, values), default=0)
    widest = _WIDEST if ":" in pattern else 0
    budget.allow(len(pattern) + pattern.count("{") * max(largest, widest))


def _too_wide(field: str) -> str:
    return (
        f"The model's chat template formats a field of unknown or too large width ({field}); at most {_WIDEST:,} is "
        "allowed; correct the template."
    )


# -- methods and filters ----------------------------------------------------------------------------------------------
def _before_replace(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    old, new = (*arguments, *named.values(), "", "")[:2]
    if isinstance(old, str | bytes) and isinstance(new, str | bytes) and isinstance(owner, type(old)):
        places = owner.count(old) if old else len(owner) + 1  # type: ignore[arg-type]
        budget.allow(len(owner) + places * max(0, len(new) - len(old)))


def _before_expandtabs(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    width = next((value for value in (*arguments, *named.values()) if isinstance(value, int)), 8)
    budget.allow(len(owner) + owner.count("\t" if isinstance(owner, str) else b"\t") * max(0, width))


def _before_translate(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    table = arguments[0] if arguments else {}
    longest = max((len(value) for value in table.values() if isinstance(value, str)), default=1) if table else 1
    budget.allow(len(owner) * max(1, longest))


def _before_split(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    separator = arguments[0] if arguments else named.get("sep")
    if isinstance(separator, str | bytes) and separator and isinstance(owner, type(separator)):
        budget.allow_items(owner.count(separator) + 1)  # type: ignore[arg-type]
    elif len(owner) > 10_000:
        budget.allow_items(len(owner.split(None, 2**20)))
    budget.spend(len(owner) // 64)


def _before_splitlines(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    if isinstance(owner, str):
        budget.allow_items(sum(owner.count(end) for end in _LINE_ENDS) + 1)


def _before_format_map(budget: Budget, owner: Any, arguments: Arguments, named: Named) -> None:
    _before_braces(budget, owner, (), arguments[0] if arguments and isinstance(arguments[0], Mapping) else {})


def _joined(budget: Budget, values: Any, between: int) -> list[Any]:
    found = _listed(budget, values)
    budget.allow(sum(map(budget.measure, found)) + between * len(found))
    return found


def _listed(budget: Budget, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | list | tuple | Mapping | range):
        budget.allow_items(len(values))
    found: list[Any] = []
    for value in values:
        budget.spend(1)
        found.append(value)
    budget.allow_items(len(found))
    return found


def _join_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    between = arguments[0] if arguments else named.get("d", "")
    return _joined(budget, value, budget.measure(between)) if isinstance(value, Iterable) else value


def _list_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    return _listed(budget, value) if isinstance(value, Iterable) else value


def _indent_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    width = arguments[0] if arguments else named.get("width", 4)
    text = budget.text(value)
    budget.allow(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else int(width)))
    return value


def _replace_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    text = budget.text(value)
    _before_replace(budget, text, [budget.text(one) for one in (*arguments, *named.values())][:2], {})
    return value


def _json_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    indent = (*arguments[1:2], named.get("indent"))[0]
    width = len(indent) if isinstance(indent, str) else indent if isinstance(indent, int) else 0
    separators = named.get("separators") or ("",)
    budget.allow(budget.measure(value, max(0, width) + max(len(one) for one in separators)))
    return value


def _format_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    _before_percent(budget, budget.text(value), dict(named) if named else tuple(arguments))
    return value


def _compared_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    found = _listed(budget, value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value
    budget.measure(found)
    return found


def _sum_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    start = arguments[1] if len(arguments) > 1 else named.get("start", 0)
    if not isinstance(start, int | float):
        raise ChatTemplateError("The model's chat template sums what are no numbers; correct the template.")
    return _listed(budget, value)


def _round_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    precision = arguments[0] if arguments else named.get("precision", 0)
    if isinstance(precision, int) and abs(precision) > 100:
        raise ChatTemplateError(f"The model's chat template rounds to {precision} digits; at most 100 are allowed.")
    return value


def _text_filter(budget: Budget, value: Any, arguments: Arguments, named: Named) -> Any:
    budget.measure(value)
    return value


_OF_STRINGS: dict[str, Callable[[Budget, Any, Arguments, Named], None]] = {
    "replace": _before_replace,
    "expandtabs": _before_expandtabs,
    "translate": _before_translate,
    "split": _before_split,
    "rsplit": _before_split,
    "splitlines": _before_splitlines,
    "format": _before_braces,
    "format_map": _before_format_map,
}
_OF_FILTERS: dict[str, Callable[[Budget, Any, Arguments, Named], Any]] = {
    "join": _join_filter,
    "list": _list_filter,
    "indent": _indent_filter,
    "replace": _replace_filter,
    "tojson": _json_filter,
    "format": _format_filter,
    "sum": _sum_filter,
    "round": _round_filter,
    **dict.fromkeys(("sort", "unique", "min", "max", "dictsort"), _compared_filter),
    **dict.fromkeys(
        ("string", "upper", "lower", "title", "capitalize", "trim", "escape", "e", "center", "truncate", "urlencode"),
        _text_filter,
    ),
}
