"""Tokenize with a GGUF file's compiled vocabulary, loaded in a fiftieth of the library's time and memory."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from inflight.compiled import module
from inflight.models.gguf.gguf_model import GGUFModel

from .gguf_tokenizer import (
    BYTES,
    IGNORE_MERGES,
    KEY,
    SENTENCEPIECE,
    Splits,
    gguf_backend,
    is_prefixed,
    pre_tokenizer_of,
    sentencepiece_decoder,
    sentencepiece_normalizer,
    unknown_token,
)

if TYPE_CHECKING:
    import tokenizers

# Characters of a text from which the library encodes it, whose batch calls let other threads run. The text of a short
# body is not so long, its tools shown twice: the process that reads it has no room for the library's vocabulary.
_LONG = 1 << 16


class CompiledAddedToken(Struct, frozen=True):
    """An added token as the library has it for GGUF files: matched anywhere, without the spaces around it."""

    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False


class CompiledEncoding:
    """The tokens of a text; offsets: start and end of each in the text."""

    __slots__ = ("_text", "_tokenizer", "ids")

    def __init__(self, tokenizer: CompiledTokenizer, text: str, ids: list[int]) -> None:
        self._tokenizer, self._text, self.ids = tokenizer, text, ids

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return self._tokenizer.offsets(self._text)

    @property
    def type_ids(self) -> list[int]:
        return [0] * len(self.ids)

    def truncate(self, length: int) -> None:
        self.ids = self.ids[:length]


class CompiledTokenizer:
    """The part of the library's tokenizer interface that is needed: encode, decode, added tokens.

    Results equal those of the library's tokenizer of the same file (`gguf_tokenizer`), the reference in the tests. That
    one is loaded only for long texts that are split before merging, and for offsets of tokens.
    """

    def __init__(
        self,
        model: GGUFModel,
        vocabulary: Any,
        splits: Splits | None,
        decoder: Any,
        prefixed: bool,
        settings: Mapping[str, Any],
    ) -> None:
        """Make a tokenizer.

        Args:
            model: The GGUF file.
            vocabulary: Its compiled vocabulary.
            splits: Split texts before merging; None: texts are merged whole.
            prefixed: Whether a space is put before a text.
            settings: Of the library's model of such a vocabulary.
        """
        self._settings = settings
        self._model, self._vocabulary, self._splits, self._prefixed = model, vocabulary, splits, prefixed
        self.decoder = decoder
        self.pre_tokenizer = None if splits is None else splits.pre_tokenizer
        self._contents: dict[int, tuple[str, bool]] = {}
        for tokens, special in ((vocabulary.special, True), (vocabulary.defined, False)):
            self._contents |= {token_id: (content, special) for content, token_id in tokens}
        self._added = self.added_without(())

    # -- vocabulary -------------------------------------------------------------------------------------------------
    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return len(self._vocabulary)

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        found = self._vocabulary.token
        ids, missing = dict[str, int](), len(self._vocabulary)
        for token_id in itertools.count():
            if not missing:
                return ids
            if (token := found(token_id)) is not None:
                ids[token] = token_id
                missing -= 1
        raise AssertionError("counting does not end")

    @property
    def model(self) -> CompiledTokenizer:
        """Return the part that knows the words of the vocabulary, all added tokens among them."""
        return self

    def to_str(self) -> str:
        """Return tokenizer.json's text without the vocabulary."""
        from tokenizers import AddedToken, Tokenizer, models

        words = {content: token_id for token_id, (content, _) in self._contents.items()}
        light = Tokenizer(models.BPE(words, [], **self._settings))
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            if (part := getattr(self, name)) is not None:
                setattr(light, name, part)
        added = [AddedToken(content, normalized=False, special=special) for content, special in self._contents.values()]
        light.add_tokens(added)
        written = light.to_str()
        whole: str = written[: written.rindex('"vocab":{')] + self._vocabulary.as_json()
        return whole

    @property
    def normalizer(self) -> Any:
        return sentencepiece_normalizer(self._prefixed) if self._splits is None else self._splits.normalizer

    @property
    def longest_name(self) -> int:
        """Highest number of characters of a token as the vocabulary spells it."""
        return int(self._vocabulary.longest)

    def id_to_token(self, token_id: int) -> str | None:
        token: str | None = self._vocabulary.token(token_id)
        return token

    def token_to_id(self, token: str) -> int | None:
        token_id: int | None = self._vocabulary.find(token)
        return token_id

    def get_added_tokens_decoder(self) -> dict[int, CompiledAddedToken]:
        return {token_id: CompiledAddedToken(*self._contents[token_id]) for token_id in sorted(self._contents)}

    def add_special_tokens(self, tokens: Iterable[str]) -> None:
        """Make tokens of the vocabulary special; other texts are ignored."""
        added = {token_id: (token, True) for token in tokens if (token_id := self.token_to_id(token)) is not None}
        if added:
            self._contents |= added
            self._added = self.added_without(())

    # -- texts ------------------------------------------------------------------------------------------------------
    def encode(self, text: str, add_special_tokens: bool = True) -> CompiledEncoding:
        """Encode a text without tokens around it: those that a GGUF file names are added elsewhere."""
        if self._splits is not None and len(text) >= _LONG:
            return CompiledEncoding(self, text, self.library.encode_batch_fast([text])[0].ids)
        return CompiledEncoding(self, text, self.ids_between(text, self._added))

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[CompiledEncoding]:
        return [self.encode(text) for text in texts]

    def post_process(
        self, first: CompiledEncoding, second: CompiledEncoding | None, add_special_tokens: bool
    ) -> CompiledEncoding:
        return first if second is None else CompiledEncoding(self, "", first.ids + second.ids)

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        return 0

    def offsets(self, text: str) -> list[tuple[int, int]]:
        if self._splits is not None or self._prefixed:
            return self.library.encode(text).offsets
        _, begins, ends = self._vocabulary.encode_places(text, self._added)
        return list(zip(begins, ends, strict=True))

    def ids_between(self, text: str, added: Any) -> list[int]:
        """Encode a text in which these added tokens are matched."""
        if self._splits is None:
            whole: list[int] = self._vocabulary.encode_text(text, added, self._prefixed)
            return whole
        found: list[int] = []
        for part in added.split(text):
            found += [part] if isinstance(part, int) else self._merged(part)
        return found

    def added_without(self, control: Collection[str]) -> Any:
        """Return the added tokens except these, for `ids_between`."""
        kept = [(content, token_id) for token_id, (content, _) in self._contents.items() if content not in control]
        return module().AddedTokens([content for content, _ in kept], [token_id for _, token_id in kept])

    def word_ids(self, word: str) -> list[int]:
        """Encode a word by the vocabulary alone."""
        found: list[int] = self._vocabulary.encode_words([word])
        return found

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        if any(not 0 <= token_id < 2**32 for token_id in token_ids):
            raise ValueError("an id has no 32 bits")
        tokens = [
            token
            for token_id in token_ids
            if not (skip_special_tokens and self._contents.get(token_id, ("", False))[1])
            and (token := self._spelled(token_id)) is not None
        ]
        text: str = self.decoder.decode(tokens)
        return text

    def decode_batch(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        return [self.decode(one, skip_special_tokens) for one in sequences]

    # -- the library ------------------------------------------------------------------------------------------------
    @cached_property
    def library(self) -> tokenizers.Tokenizer:
        """The library's tokenizer of the same file."""
        backend = gguf_backend(self._model)
        backend.add_special_tokens([content for content, special in self._contents.values() if special])
        return backend

    def _merged(self, text: str) -> list[int]:
        assert self._splits is not None
        if self._splits.normalizer is not None and not text.isascii():
            text = self._splits.normalizer.normalize_str(text)
        found: list[int] = self._vocabulary.encode_words(self._splits.pre_tokenizer.pre_tokenize_str(text))
        return found

    def _spelled(self, token_id: int) -> str | None:
        return self._contents[token_id][0] if token_id in self._contents else self.id_to_token(token_id)


def compiled_tokenizer(model: GGUFModel) -> CompiledTokenizer | None:
    """Return a file's tokenizer; None if the module is not compiled, or the library must read the vocabulary, which
    also reports its errors."""
    metadata = model.metadata
    kind, pre = metadata.text(KEY + "model"), metadata.text(KEY + "pre") or "default"
    splits = pre_tokenizer_of(pre) if kind == "gpt2" else None
    if (
        kind not in ("gpt2", *SENTENCEPIECE)
        or (kind == "gpt2" and splits is None)
        or not metadata.length(KEY + "tokens")
    ):
        return None
    try:
        vocabulary = _vocabulary(model, splits is None)
    except (ImportError, AttributeError, ValueError):  # not built, or of older sources, or not for it
        return None
    if splits is not None:
        from tokenizers import decoders

        if pre in IGNORE_MERGES:
            vocabulary.keep_words()
        settings: dict[str, Any] = {"ignore_merges": pre in IGNORE_MERGES}
        return CompiledTokenizer(model, vocabulary, splits, decoders.ByteLevel(), False, settings)
    prefixed, unknown = is_prefixed(model), _unknown(model)
    settings = {"fuse_unk": True, "byte_fallback": all(vocabulary.find(one) is not None for one in BYTES)}
    if (named := vocabulary.token(unknown)) is not None:
        settings["unk_token"] = named
    return CompiledTokenizer(model, vocabulary, None, sentencepiece_decoder(prefixed), prefixed, settings)


def _vocabulary(model: GGUFModel, spaces: bool) -> Any:
    """Load the vocabulary. spaces: texts are merged whole, their spaces as ▁. Raises ImportError and ValueError."""
    metadata = model.metadata
    kinds = metadata.int32s(KEY + "token_type")
    vocabulary = module().Vocabulary(*metadata.strings(KEY + "tokens"), kinds or None, spaces)
    if _has_twice([content for content, _ in (*vocabulary.special, *vocabulary.defined)]):
        raise ValueError("tokens are special in two ways")
    if metadata.length(KEY + "merges"):
        vocabulary.add_pairs(*metadata.strings(KEY + "merges"))
    elif spaces:
        scores = array("f", metadata.numbers(KEY + "scores"))
        vocabulary.merge_by_scores(scores if scores and not model.architecture.startswith("gemma") else None)
    if spaces:
        vocabulary.set_unknown(_unknown(model))
    return vocabulary


def _unknown(model: GGUFModel) -> int:
    """Return the id of the token for unknown characters; -1: there is none."""
    unknown = unknown_token(model, model.metadata.int32s(KEY + "token_type"))
    return unknown if unknown is not None and 0 <= unknown < model.metadata.length(KEY + "tokens") else -1


def _has_twice(contents: list[str]) -> bool:
    return len(set(contents)) < len(contents)
