"""Why a grammar cannot be used: the library's sentences, put otherwise where a client could not act on them."""

import re

_LONGEST = 300  # characters
_WITHIN = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")  # of a grammar that a client has not seen
ALLOWS_NOTHING = "it allows no text that ends: it refers to itself without end, or contradicts itself"
_TOO_MANY = "more can follow at one place than is kept track of (2,000 items; an optional property takes 4); give less"


class GrammarError(ValueError):
    """A grammar cannot be used; the sentence, without its subject, says why."""


class GrammarNotNow(GrammarError):
    """A grammar cannot be compiled at the moment, for a reason that passes and is not its own."""


def is_unsatisfiable(error: GrammarError) -> bool:
    """Whether the library found that no text is valid, which no wider form mends."""
    return "Unsatisfiable" in str(error) or ALLOWS_NOTHING in str(error)


def client_sentence(sentence: str) -> str:
    """Return the library's error for a client: one line, which holds the reason."""
    lines = sentence.strip().split("\n")
    first = lines[0]
    if "NoExtensionBias" in first:
        return first.replace("NoExtensionBias", ALLOWS_NOTHING)[:_LONGEST]
    if "Current row has" in first:
        return _TOO_MANY
    first = _WITHIN.sub("a JSON schema in it: ", first)
    reason = next((one for one in reversed(lines[1:]) if one.startswith("error: ")), None)
    if reason is None:
        return first[:_LONGEST]
    # Of a regular expression: what comes before shows it, and the place.
    reason = reason.removeprefix("error: ")[: _LONGEST // 2]
    return f"{first[: _LONGEST - len(reason)].removesuffix(':')}: {reason}"
