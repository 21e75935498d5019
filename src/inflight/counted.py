"""Numbers with their nouns, and quotations, for sentences: 1 token, 2 tokens, "a text that is cut o…".

Knows English plurals that end in s, and takes those that do not. Does not know what is counted.
"""

from __future__ import annotations

LONGEST_SHOWN = 60  # characters of a value or name in a sentence


def counted(number: int, one: str, many: str = "") -> str:
    """`1 token`, `2,000 tokens`. many: where more than one is not spelled with an s (`calls are under way`)."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def there_are(number: int, one: str = "") -> str:
    """`there is 1`, `there are 2`, `there is 1 expert`, `there are 2 experts`."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, one) if one else f'{number:,}'}"


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return the text, fit to be quoted in a sentence: at most so many characters, and half a character, which no UTF-8
    holds, as an escape."""
    text = text[: most + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"
