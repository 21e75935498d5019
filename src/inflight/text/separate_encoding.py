"""Encode text whose control tokens are known; other text that looks like a control token stays plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from inflight.text.compiled_tokenizer import CompiledTokenizer
from inflight.text.errors import LibraryFaults, TokenizerError

if TYPE_CHECKING:
    import tokenizers

_LEADS = range(0x10FFFD, 0xF0000, -1)  # characters of private use; the first that a text lacks begins all names
_FIRST = 0xF0000  # the second character of the first name
_UNKNOWN = "\U0010fffe"  # in no vocabulary


class SeparateEncoder:
    """Encode text and control tokens separately, by a second tokenizer, in which control tokens have names that no text
    contains. It shares the first one's model, so it costs no memory."""

    def __init__(self, backend: tokenizers.Tokenizer, control: Collection[str]) -> None:
        """Make an encoder. control: texts of the added tokens that are control tokens."""
        self._backend = backend
        self._control = sorted(control)
        with LibraryFaults("The tokenizer cannot name its control tokens"):
            self._control_ids = {backend.token_to_id(content) for content in self._control}
            self._unknown_ids = _ids_of(backend, _UNKNOWN)
        self._made = self._make(_LEADS[0])

    def encode(self, parts: Sequence[str]) -> list[int]:
        """Encode alternating texts and control tokens.

        Args:
            parts: An odd number of strings, with the control tokens at odd indices.

        Raises:
            TokenizerError: The library fails on the text, or encodes text as a control token.
        """
        texts = parts[::2]
        made = self._made
        if any(chr(made.lead) in text for text in texts):
            made = self._made = self._make(_unused_lead(texts))
        named = [part if index % 2 == 0 else made.names[part] for index, part in enumerate(parts)]
        with LibraryFaults("The tokenizer fails on this text"):
            # By the batch call, which lets other threads run.
            ids = made.backend.encode_batch(["".join(named)], add_special_tokens=False)[0].ids
        if sum(token_id in made.named_ids for token_id in ids) != len(parts) // 2:
            raise TokenizerError(
                f"The tokenizer does not take the {len(parts) // 2} control tokens of this prompt for what they are "
                "beside text that spells such tokens; leave the control tokens out of the messages."
            )
        found: list[int] = []
        for token_id in ids:
            found += made.ids.get(token_id) or _as_text(token_id, self._backend, self._control_ids, self._unknown_ids)
        return found

    def _make(self, lead: int) -> _Made:
        from tokenizers import AddedToken, Tokenizer

        with LibraryFaults("The tokenizer's control tokens cannot be renamed"):
            backend = Tokenizer(self._backend.model)
            if self._backend.normalizer is not None:
                backend.normalizer = self._backend.normalizer
            if self._backend.pre_tokenizer is not None:
                backend.pre_tokenizer = self._backend.pre_tokenizer
            names = {content: chr(lead) + chr(_FIRST + n) for n, content in enumerate(self._control)}
            added = sorted(self._backend.get_added_tokens_decoder().items())
            renamed = [names.get(token.content, token.content) for _, token in added]
            backend.add_tokens(
                [
                    AddedToken(
                        name,
                        single_word=token.single_word,
                        lstrip=token.lstrip,
                        rstrip=token.rstrip,
                        normalized=token.normalized,
                        special=token.special,
                    )
                    for name, (_, token) in zip(renamed, added, strict=True)
                ]
            )
            ids = {
                own: [token_id]
                for name, (token_id, _) in zip(renamed, added, strict=True)
                if (own := backend.token_to_id(name)) is not None
            }
        named_ids = {own for name in names.values() if (own := backend.token_to_id(name)) is not None}
        return _Made(backend, lead, names, ids, frozenset(named_ids))


class CompiledSeparateEncoder:
    """`SeparateEncoder` for a compiled tokenizer, which takes the added tokens with each text."""

    def __init__(self, backend: CompiledTokenizer, control: Collection[str]) -> None:
        self._backend, self._added = backend, backend.added_without(control)
        self._control_ids = {content: backend.token_to_id(content) for content in control}
        self._unknown_ids = _ids_of(backend, _UNKNOWN)

    def encode(self, parts: Sequence[str]) -> list[int]:
        """Encode as `SeparateEncoder.encode` does."""
        backend, control_ids, found = self._backend, set(self._control_ids.values()), list[int]()
        for index, part in enumerate(parts):
            if index % 2:
                token_id = self._control_ids[part]
                assert token_id is not None, "an added token has an id"
                found.append(token_id)
                continue
            with LibraryFaults("The tokenizer fails on this text"):
                ids = backend.ids_between(part, self._added)
            if not control_ids.isdisjoint(ids):
                ids = [one for own in ids for one in _as_text(own, backend, control_ids, self._unknown_ids)]
            found += ids
        return found


def separate_encoder(
    backend: tokenizers.Tokenizer | CompiledTokenizer, control: Collection[str]
) -> SeparateEncoder | CompiledSeparateEncoder:
    """Make the encoder for a tokenizer. control: texts of the added tokens that are control tokens."""
    if isinstance(backend, CompiledTokenizer):
        return CompiledSeparateEncoder(backend, control)
    return SeparateEncoder(backend, control)


class _Made(NamedTuple):
    """A second tokenizer. ids: the first tokenizer's ids of its added tokens."""

    backend: tokenizers.Tokenizer
    lead: int
    names: dict[str, str]
    ids: dict[int, list[int]]
    named_ids: frozenset[int]


def _unused_lead(texts: Sequence[str]) -> int:
    used = set().union(*texts)
    lead = next((number for number in _LEADS if chr(number) not in used), None)
    if lead is None:
        raise TokenizerError(
            f"The prompt's text uses all of Unicode's {len(_LEADS):,} characters of private use, so that its control "
            "tokens cannot be distinguished from text; leave some out."
        )
    return lead


def _as_text(
    token_id: int,
    backend: tokenizers.Tokenizer | CompiledTokenizer,
    control_ids: Collection[int | None],
    unknown_ids: Sequence[int],
) -> list[int]:
    """Return the ids for a token that was made from text.

    If the vocabulary itself contains a control token, as sentencepiece's Unigram does, its characters replace it.
    """
    if token_id not in control_ids or token_id in unknown_ids:
        return [token_id]
    content = backend.id_to_token(token_id) or ""
    spelled = [one for character in content for one in _ids_of(backend, character)]
    if not spelled or not set(control_ids).isdisjoint(set(spelled) - set(unknown_ids)):
        raise TokenizerError(f"The tokenizer has no way to write {content!r} as text; leave it out of the messages.")
    return spelled


def _ids_of(backend: tokenizers.Tokenizer | CompiledTokenizer, piece: str) -> list[int]:
    """Encode a piece of text by the model alone; empty if the model cannot."""
    try:
        with LibraryFaults("The model cannot take this"):
            if isinstance(backend, CompiledTokenizer):
                return backend.word_ids(piece)
            return [token.id for token in backend.model.tokenize(piece)]
    except TokenizerError:
        return []
