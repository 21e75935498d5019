"""The parsers of a model's answers, as the server needs them: chosen once, made again in every process."""

from __future__ import annotations

from dataclasses import replace

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.parser_choice import ParserChoice, ParserNames, ReasoningEnds
from inflight.frontend.parsers.registry import NONE, choose
from inflight.frontend.prompts import PromptEncoder
from inflight.text import Tokenizer


def parsers_of(
    encoder: PromptEncoder, tokenizer: Tokenizer | None, asked: ParserNames, family: str | None = None
) -> ParserChoice | None:
    """Choose a model's parsers; None where nothing of its answers is known. family: of the model, where `asked` leaves
    something open. Raises ParserError."""
    if tokenizer is None or not encoder.can_chat:
        return None
    ids = {token.content: tokenizer.token_to_id(token.content) for token in tokenizer.added_tokens}
    mark_ids = {content: token_id for content, token_id in ids.items() if token_id is not None}
    chosen = choose(encoder.template_source, family, asked, mark_ids)
    return None if chosen.names == ParserNames() else chosen


def settled(parsers: ParserChoice | None) -> ParserNames:
    """Names that another process makes the same choice of."""
    names = ParserNames() if parsers is None else parsers.names
    return ParserNames(names.tools or NONE, names.reasoning or NONE)


def shown_token_ids(parsers: ParserChoice | None, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    """Return the special tokens that the parsers must see."""
    if parsers is None or tokenizer is None:
        return ()
    known = tokenizer.token_ids
    ids = [known[mark] for mark in parsers.visible_marks if mark in known]
    return tuple(sorted({one for one in ids if _is_special(tokenizer, one)}))


def after_reasoning(
    grammar: Grammar, marks: ReasoningEnds, tokenizer: Tokenizer, in_reasoning: bool, max_tokens: int | None = None
) -> Grammar:
    """Return the grammar of an answer behind its reasoning, if it has any.

    Args:
        in_reasoning: The prompt has opened it; else the model chooses by its first tokens.
        max_tokens: Of the reasoning; None: no limit.
    """
    begin, end = (tuple(tokenizer.encode(one, add_special_tokens=False)) for one in marks)
    return replace(
        grammar, after_token_ids=end, max_tokens_before=max_tokens, opening_token_ids=() if in_reasoning else begin
    )


def call_marks(parsers: ParserChoice | None, tokenizer: Tokenizer | None) -> tuple[tuple[int, ...], ...]:
    """Return runs of tokens of which an answer that calls a tool has one. Of a text that is no token by itself the last
    token is left out, which may be another with what follows; and it may begin an answer, or stand behind a space."""
    if parsers is None or tokenizer is None:
        return ()
    found: dict[tuple[int, ...], None] = {}
    for text in parsers.texts_in_calls:
        if text in tokenizer.token_ids:
            found[(tokenizer.token_ids[text],)] = None
            continue
        for written in (text, f" {text}", f"\n{text}"):
            if run := tuple(tokenizer.encode(written, add_special_tokens=False))[:-1]:
                found[run] = None
    return tuple(found)


def _is_special(tokenizer: Tokenizer, token_id: int) -> bool:
    return token_id in tokenizer.special_token_ids
