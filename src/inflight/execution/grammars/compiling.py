"""Compiling one grammar, as the limited process and the engine do: what the library may take, and how important it is.

The library is imported with the first grammar, since most engines are never asked for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflight.execution.grammars.errors import GrammarError, client_sentence

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK_BYTES = 16 << 20  # of the thread that compiles here
MAX_LEXER_STATES = 20_000  # of the automaton that reads a text; of about 2 kB
MAX_SYMBOLS = 200_000  # of its rules
STEP_LEXER_FUEL = 200_000  # of one mask: about 14 ms; the first of a hundred optional properties needs 150,000
NICE = 10


def compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Return a matcher at the beginning of a grammar whose first mask is known. Raises GrammarError."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_SYMBOLS,
        step_lexer_fuel=STEP_LEXER_FUEL,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(f"cannot be used: {client_sentence(matcher.get_error())}")
    matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(f"cannot be computed: {client_sentence(matcher.get_error())}")
    return matcher
