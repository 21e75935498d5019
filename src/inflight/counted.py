"""Numbers with their nouns, for sentences: 1 token, 2 tokens.

Knows English plurals that end in s, and takes those that do not. Does not know what is counted.
"""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 token`, `2,000 tokens`. many: where more than one is not spelled with an s (`calls are under way`)."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def there_are(number: int, one: str = "") -> str:
    """`there is 1`, `there are 2`, `there is 1 expert`, `there are 2 experts`."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, one) if one else f'{number:,}'}"
