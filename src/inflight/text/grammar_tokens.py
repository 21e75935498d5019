"""Convert a tokenizer for the grammar library, so that an added token is text unless it is special."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from inflight.text.token_bytes import TokenPieces, byte_level_alphabet

if TYPE_CHECKING:
    import tokenizers

    from inflight.text.compiled_tokenizer import CompiledTokenizer

_ADDED, _MODEL, _WORDS = '"added_tokens":', '"model":{', '"vocab":{'
_NAME = "<\U0010fffe{}>"  # of a special token; in no text
_BYTE_TOKEN = "<0x"  # begins the names of bytes, where a vocabulary has some


class GrammarTokens(Struct, frozen=True):
    """A tokenizer for grammars.

    Attributes:
        as_json: tokenizer.json with these tokens.
        count: Number of its tokens, and above all ids.
        plain: Ids of added tokens that became words of the model, by text.
        special: Ids of the tokens that no text matches, by text.
    """

    as_json: str
    count: int
    plain: Mapping[str, int]
    special: Mapping[str, int]


def grammar_tokens(backend: tokenizers.Tokenizer | CompiledTokenizer, pieces: TokenPieces) -> GrammarTokens:
    """Convert the tokenizer; the result is not cached.

    llguidance takes every added token spelled `<…>` as special, which no text matches, and yet finds such tokens in the
    texts that a grammar forces. Many are not special (`<tool_call>`, `<think>`, HTML tags): these become words of the
    model's vocabulary, so that a text may be written by their ids or by smaller tokens. Special tokens get names that
    no text holds. The file's text is changed in two places rather than parsed: it has megabytes.
    """
    source, count = backend.to_str(), backend.get_vocab_size(with_added_tokens=True)
    begin = source.index(_ADDED) + len(_ADDED)
    added, end = json.JSONDecoder().raw_decode(source, begin)
    words_at = source.find(_WORDS, source.index(_MODEL, end))
    if words_at < 0:  # a list, whose words are numbered by their places: these tokens stay as the library has them
        return GrammarTokens(source, count, {}, {one["content"]: one["id"] for one in added if _is_special(one)})
    kept, word_ids, plain, special = list[dict[str, Any]](), dict[str, int](), dict[str, int](), dict[str, int]()
    for token in added:
        content, token_id = token["content"], token["id"]
        if not _is_special(token) and not token["lstrip"] and not token["rstrip"]:
            kept.append(token)
            word_ids[content] = token_id
        elif not token["special"] and (word := _as_word(backend, pieces, token)) is not None:
            word_ids[word] = plain[content] = token_id
        else:
            special[content] = token_id
    for token_id in (*special.values(), *_missing(backend, added, count)):
        name = _NAME.format(token_id)
        word_ids[name] = token_id
        kept.append({**added[0], "id": token_id, "content": name, "special": True, "lstrip": False, "rstrip": False})
    # All of them are words: the library numbers an added token that is none by how many words there are.
    listed = json.dumps(word_ids, ensure_ascii=False)[1:-1] + ","
    words_at += len(_WORDS)
    listed = listed.strip(",") if source[words_at] == "}" else listed.lstrip(",")
    as_json = f"{source[:begin]}{json.dumps(kept, ensure_ascii=False)}{source[end:words_at]}{listed}{source[words_at:]}"
    named = backend.get_vocab_size(with_added_tokens=False) + sum(
        backend.model.token_to_id(one) is None for one in word_ids
    )
    return GrammarTokens(as_json, max(named, 1 + max(word_ids.values(), default=-1)), plain, special)


def _as_word(
    backend: tokenizers.Tokenizer | CompiledTokenizer, pieces: TokenPieces, token: Mapping[str, Any]
) -> str | None:
    """Return an added token's text as the model's vocabulary spells its words; None where it spells another there."""
    content: str = token["content"]
    if content.startswith(_BYTE_TOKEN):
        return None
    if pieces.marks_each_byte:
        return content
    of_byte = _character_of_byte()
    word = "".join([of_byte[byte] for byte in pieces.inside(token["id"]) or b""])
    return word if word == content or backend.model.token_to_id(content) is None else None


@cache
def _character_of_byte() -> Mapping[int, str]:
    return {byte: character for character, byte in byte_level_alphabet().items()}


def _is_special(token: Mapping[str, Any]) -> bool:
    """Return whether the library takes the token as special."""
    return bool(token["special"] or (token["content"].startswith("<") and token["content"].endswith(">")))


def _missing(backend: tokenizers.Tokenizer | CompiledTokenizer, added: list[dict[str, Any]], count: int) -> list[int]:
    """Return ids without a token below the last added one, as converted vocabularies have; the library bears none."""
    last = max((token["id"] for token in added), default=-1)
    if last < count:
        return []
    return sorted(set(range(last + 1)) - set(backend.get_vocab(with_added_tokens=True).values()))
