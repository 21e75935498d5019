"""Find a model's control tokens, and distinguish those that a client wrote from the template's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from inflight.text.errors import ChatTemplateError

_BARS = ("<|", "|>", "<\uff5c", "\uff5c>")  # the second two are wide ones
_NO_MARKS = frozenset("_-./,:;'\"\\")  # common in plain words and names, or written otherwise by JSON
_ASSISTANTS = ("assistant", "model")
_LONGEST = 256  # characters of a control token; those that are published have thirty
_PRIVATE = range(0xF0000, 0x10FFFE)
_Hide = Callable[[str], str]


class AddedToken(Struct, frozen=True):
    """An added token of a tokenizer. single_word: not matched within a word."""

    content: str
    special: bool
    single_word: bool


class ControlTokens:
    """The control tokens of one model: special tokens; tokens spelled with bars, such as `<|fim_prefix|>`; and other
    added tokens with marks (`<`, `|`, `[`) that the template itself writes (`<tool_call>`). Other added tokens
    (`<table>`, runs of spaces) are words of the vocabulary, and stay so in all texts.

    An assistant's message is what the model once wrote. It keeps the markup that the template looks for (`</think>`)
    and the added tokens that are not special, as transformers would read them. A role is the template's word, not
    content.
    """

    def __init__(
        self, added: Iterable[AddedToken], written: str, looked_for: Iterable[str], changes_text: bool = False
    ) -> None:
        """Find the control tokens among the added tokens.

        Args:
            added: The tokenizer's added tokens.
            written: Sources of the chat templates.
            looked_for: Strings that the templates search messages for.
            changes_text: Whether the templates change texts in the middle.

        Raises:
            ChatTemplateError: A control token is too long.
        """
        looked_for = tuple(looked_for)
        control = [token for token in added if _is_control(token, written)]
        if long := next((token.content for token in control if len(token.content) > _LONGEST), None):
            raise ChatTemplateError(
                f"The model's control token {long[:40]!r}… has {len(long):,} characters, and at most {_LONGEST} are "
                "looked for in messages; correct its tokenizer.json, or give prompts as text."
            )
        hard = [token for token in control if _is_hard(token, looked_for)]
        self._changes_text = changes_text
        self._all, self._hard = _Finder(control), _Finder(hard)
        soft = {token.content for token in control} - {token.content for token in hard}
        kept = {one for one in soft.union(looked_for) if not any(one in token.content for token in hard)}
        self._kept = re.compile("|".join(map(re.escape, sorted(kept, key=len, reverse=True)))) if kept else None
        self.contents = frozenset(token.content for token in control)

    def split(self, text: str) -> list[str]:
        """Split into alternating texts and control tokens: an odd number of strings, control tokens at odd indices."""
        return self._all.split(text)

    def may_be_made_by(self, messages: Sequence[Mapping[str, Any]], others: Any) -> bool:
        """Return whether client text contains a control token or may form one, in one scan.

        The beginning or end of one may; any mark may if the template changes texts.
        """
        any_mark = self._changes_text
        return any(self._finder_of(one).is_in(one, any_mark) for one in messages) or self._all.is_in(others, any_mark)

    def hiding(self, messages: Sequence[Mapping[str, Any]], others: Any) -> Hiding:
        """Choose the characters that hide the marks of this conversation."""
        alphabet = self._all.marks
        used: set[str] = set()
        for text in _strings([messages, others]):
            used |= set(text)
        return Hiding(self, dict(zip(alphabet, _unused(used, len(alphabet)), strict=True)))

    def hide_in_own(self, text: str, table: Mapping[int, str]) -> str:
        """Hide the marks of a model's earlier text, except those of strings that stay tokens there."""
        shown, done = [], 0
        for found in self._kept.finditer(text) if self._kept is not None else ():
            shown += [self._hard.hide_all(text[done : found.start()], table), found[0]]
            done = found.end()
        return "".join([*shown, self._hard.hide_all(text[done:], table)])

    def _finder_of(self, message: Mapping[str, Any]) -> _Finder:
        return self._hard if message.get("role") in _ASSISTANTS else self._all


class Hiding:
    """Hide the marks of one conversation, and restore them.

    Each mark is replaced by a character of private use that is not in the conversation, so that lengths stay, and
    trimming and joining work as before. If a template removes or changes parts of a text (`replace`, `lower`), any mark
    could become a token's.
    """

    def __init__(self, tokens: ControlTokens, hidden: Mapping[str, str]) -> None:
        self._tokens = tokens
        self._hide = str.maketrans(dict(hidden))
        self._show = {ord(secret): mark for mark, secret in hidden.items()}

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        tokens, table = self._tokens, self._hide
        own = tokens._finder_of(message) is not tokens._all
        hidden = _mapped(message, lambda text: tokens.hide_in_own(text, table)) if own else self.other(message)
        return {**hidden, "role": tokens._all.hide_found(message["role"], table)}

    def other(self, value: Any) -> Any:
        """Hide every mark in tools, variables, and all messages except the model's, so that joined pieces of a token
        stay text, too."""
        return _mapped(value, lambda text: self._tokens._all.hide_all(text, self._hide))

    def shown(self, text: str) -> str:
        text = text.translate(self._show)
        if "\\ud" in text:  # a template that writes JSON in ASCII spells them out
            for secret, mark in self._show.items():
                text = text.replace(json.dumps(chr(secret))[1:-1], mark)
        return text


class _Finder:
    """Find tokens in text: whole ones, longest first, and beginnings and ends of them at its edges."""

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        contents = [token.content for token in tokens]
        self._pattern = re.compile(_any_of(tokens)) if tokens else None
        self._bare = {content for content in contents if not _marks(content)}
        bare = [token for token in tokens if token.content in self._bare]
        self._bare_pattern = re.compile(_any_of(bare)) if bare else None
        self._signs = {mark for content in contents for mark in _marks(content)}
        self._any_mark = re.compile(f"[{re.escape(''.join(self._signs))}]") if self._signs else None
        self.marks = sorted(self._signs | {content[0] for content in self._bare})
        whole = [content for content in contents if content not in self._bare]
        self._reach = max(map(len, whole), default=1) - 1
        cuts = [(content[:n], content[n:]) for content in whole for n in range(1, len(content))]
        self._beginnings = {begin for begin, _ in cuts if not self._signs.isdisjoint(begin)}
        self._ends = {end for _, end in cuts if not self._signs.isdisjoint(end)}

    def split(self, text: str) -> list[str]:
        if self._pattern is None:
            return [text]
        parts, done = [], 0
        for found in self._pattern.finditer(text):
            parts += [text[done : found.start()], found[0]]
            done = found.end()
        return [*parts, text[done:]]

    def is_in(self, value: Any, any_mark: bool) -> bool:
        """Return whether a value contains a token, or a part of one at an edge. any_mark: or any mark."""
        pattern, mark = self._pattern, self._any_mark if any_mark else None
        if pattern is None:
            return False
        return any(
            pattern.search(text) or self._edge(text) != (0, 0) or (mark is not None and mark.search(text))
            for text in _strings(value)
        )

    def only_marks(self, table: Mapping[int, str]) -> dict[int, str]:
        return {ord(sign): table[ord(sign)] for sign in self._signs}

    def hide_bare(self, text: str, table: Mapping[int, str]) -> str:
        """Hide the first character of tokens without a mark."""
        if self._bare_pattern is None:
            return text
        return self._bare_pattern.sub(lambda found: table[ord(found[0][0])] + found[0][1:], text)

    def hide_all(self, text: str, table: Mapping[int, str]) -> str:
        return self.hide_bare(text, table).translate(self.only_marks(table))

    def hide_found(self, text: str, table: Mapping[int, str]) -> str:
        if self._pattern is None:
            return text
        signs = self.only_marks(table)
        hidden = self._pattern.sub(lambda found: self.hide_all(found[0], table), text)
        begin, end = self._edge(hidden)
        middle = hidden[begin : len(hidden) - end]
        return hidden[:begin].translate(signs) + middle + hidden[len(hidden) - end :].translate(signs)

    def _edge(self, text: str) -> tuple[int, int]:
        """Return how many characters at the start could end a token, and how many at the end could begin one,
        including outer spaces, which templates trim."""
        head, tail = text.lstrip()[: self._reach], text.rstrip()[-self._reach :] if self._reach else ""
        ends = beginnings = 0
        if not self._signs.isdisjoint(head):
            ends = next((n for n in range(len(head), 0, -1) if head[:n] in self._ends), 0)
        if not self._signs.isdisjoint(tail):
            beginnings = next((n for n in range(len(tail), 0, -1) if tail[-n:] in self._beginnings), 0)
        before, after = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        begin = before + ends if ends else 0
        return begin, min(after + beginnings, len(text) - begin) if beginnings else 0


def _is_control(token: AddedToken, written: str) -> bool:
    if not token.content.strip(" \t\r\n▁"):
        return False
    if token.special or any(bar in token.content for bar in _BARS):
        return True
    return bool(_marks(token.content)) and token.content in written


def _is_hard(token: AddedToken, looked_for: Iterable[str]) -> bool:
    """Return whether the token is text even in an assistant's message."""
    if any(token.content in one for one in looked_for):
        return False
    return token.special or any(bar in token.content for bar in _BARS)


def _marks(content: str) -> list[str]:
    return [one for one in content if not one.isalnum() and not one.isspace() and one not in _NO_MARKS]


def _any_of(tokens: Sequence[AddedToken]) -> str:
    """Return a pattern as a tree of characters, which reads each character once for tokens with equal beginnings."""
    plain = _tree([token.content for token in tokens if not token.single_word])
    words = _tree([token.content for token in tokens if token.single_word])
    return "|".join([*([plain] if plain else []), *([rf"(?<!\w)(?:{words})(?!\w)"] if words else [])])


def _tree(contents: Iterable[str]) -> str:
    contents = set(contents)
    by_first: dict[str, list[str]] = {}
    for content in sorted(contents - {""}):
        by_first.setdefault(content[0], []).append(content[1:])
    branches = [re.escape(first) + _tree(rest) for first, rest in by_first.items()]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and "" not in contents else f"(?:{'|'.join(branches)})"
    return joined + "?" if "" in contents else joined


def _strings(value: Any) -> Iterable[str]:
    """Yield every string in a JSON value, including keys."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one


def _mapped(value: Any, change: _Hide) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


def _unused(used: set[str], count: int) -> list[str]:
    """Return characters of private use that are not used yet. Raises ChatTemplateError if there are too few."""
    found = [character for number in _PRIVATE if (character := chr(number)) not in used]
    if len(found) < count:
        raise ChatTemplateError(
            f"The conversation uses all but {len(found)} of Unicode's {len(_PRIVATE):,} characters of private use, so "
            "that its control tokens cannot be distinguished from the template's; leave some out."
        )
    return found[-count:]
