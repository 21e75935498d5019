"""Convert text to token ids and back by the model's `tokenizer.json`, or by a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.text.compiled_tokenizer import CompiledEncoding, CompiledTokenizer, compiled_tokenizer
from inflight.text.control import AddedToken
from inflight.text.errors import LibraryFaults, TokenizerError, is_fault
from inflight.text.fill_in_middle import FillInMiddle, fill_in_middle, named_tokens
from inflight.text.gguf_tokenizer import gguf_backend
from inflight.text.grammar_tokens import GrammarTokens, grammar_tokens
from inflight.text.in_parts import encoded_in_parts
from inflight.text.separate_encoding import CompiledSeparateEncoder, SeparateEncoder, separate_encoder
from inflight.text.token_bytes import TokenPieces, max_token_characters
from inflight.text.tokenizer_config import read_tokenizer_config, special_tokens

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers

# Characters of a text, or token ids, from which the library is asked by its batch calls: those let other threads run,
# which the single ones do not, and of so long a text it takes milliseconds. (Short ones they would only delay.)
LONG = 20_000
_LARGEST_FILE = 2**28  # bytes of tokenizer.json; those that are published have an eighth of it
_SLOW_FILES = ("tokenizer.model", "spiece.model", "tekken.json", "vocab.json", "merges.txt", "vocab.txt")


class Tokenizer:
    """One model's tokenizer; immutable after loading, so threads and streams may share it.

    Attributes:
        special_tokens: The tokens that tokenizer_config.json names, e.g. `{"eos_token": "</s>"}`.
        special_token_ids: Every id that `skip_special_tokens` omits.
        pieces: The bytes that each token adds to the text.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer | CompiledTokenizer, config: Mapping[str, Any] | None = None
    ) -> None:
        """Wrap a library tokenizer, whose padding and truncation are turned off, with the model's settings."""
        config = config or {}
        if not isinstance(backend, CompiledTokenizer):
            backend.no_padding()  # some files were saved with the padding and truncation of their training
            backend.no_truncation()
        self.special_tokens = special_tokens(config)
        self._fill_tokens = named_tokens(config, self.special_tokens)
        self._backend = backend
        self._mark_special()
        self.special_token_ids = self._special_ids()
        self.pieces = TokenPieces(backend)
        self._before, self._after = self._surrounding_ids(config)

    @classmethod
    def load(cls, folder: Path | GGUFModel) -> Tokenizer:
        """Load `tokenizer.json` and, if there is one, `tokenizer_config.json` from a model's folder, or both from a
        GGUF file.

        Raises:
            TokenizerError: There is no tokenizer.json, or one of the two files cannot be used.
        """
        gguf = gguf_at(folder)
        if gguf is not None:
            return cls(compiled_tokenizer(gguf) or gguf_backend(gguf), read_tokenizer_config(gguf))
        assert not isinstance(folder, GGUFModel)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(_missing(folder))
        if (size := path.stat().st_size) > _LARGEST_FILE:
            raise TokenizerError(
                f"{path} has {size:,} bytes, and at most {_LARGEST_FILE:,} are read; download or export the model's "
                "files again."
            )
        config = read_tokenizer_config(folder)
        from tokenizers import Tokenizer as Backend  # here, because it takes longer to import than all of this package

        try:
            return cls(Backend.from_file(str(path)), config)
        except BaseException as error:
            if not is_fault(error) or isinstance(error, MemoryError):
                raise
            raise TokenizerError(
                f"{path} ({path.stat().st_size} bytes) is not a tokenizer that can be read: {error}; "
                "download or export the model's files again."
            ) from error

    @property
    def vocab_size(self) -> int:
        """Number of tokens, including added ones; a model's embedding may be padded to more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def token_ids(self) -> dict[str, int]:
        """Ids by token, including added tokens; not cached."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def for_grammars(self) -> GrammarTokens:
        """Convert the tokenizer for grammars, including special tokens that the settings name; not cached."""
        return grammar_tokens(self._backend, self.pieces)

    @cached_property
    def longest_token(self) -> int | None:
        """Highest number of a text's characters that one token stands for; None: no bound (see `token_bytes`)."""
        return max_token_characters(self._backend)

    @cached_property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        """The tokens added to the model's vocabulary, or flagged as added within it."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(AddedToken(token.content, token.special, token.single_word) for token in added.values())

    @cached_property
    def fill_in_middle(self) -> FillInMiddle | None:
        """Prompts that fill the gap between two texts; None: the model has no tokens for that."""
        return fill_in_middle(self, self._fill_tokens)

    def separate_encoder(self, control: Collection[str]) -> SeparateEncoder | CompiledSeparateEncoder:
        """Make an encoder of texts whose control tokens are known. control: texts of the control tokens."""
        return separate_encoder(self._backend, control)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the settings name one."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, if the settings name one (generation_config.json may name more)."""
        return self._named_id("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode a text; special tokens written in it are encoded as such.

        Args:
            text: Any text.
            add_special_tokens: Add the tokens that the model expects around a text, such as a beginning token. Set it
                to False for a rendered chat, whose template has written them.

        Raises:
            TokenizerError: the text holds half of a surrogate pair, which no token can stand for, or the library fails
                on it in another way.
        """
        try:
            with LibraryFaults("The tokenizer fails on this text"):
                token_ids = self._encoding(text, add_special_tokens).ids
        except TokenizerError:
            _check_is_text(text)
            raise
        return [*self._before, *token_ids, *self._after] if add_special_tokens else token_ids

    def encode_in_parts(self, text: str) -> Iterator[list[int]]:
        """Yield the token ids of a text part by part, without tokens around it; memory is bounded by the part. Raises
        TokenizerError."""

        def encoding(part: str) -> tokenizers.Encoding | CompiledEncoding:
            try:
                with LibraryFaults("The tokenizer fails on this text"):
                    return self._backend.encode(part, add_special_tokens=False)
            except TokenizerError:
                _check_is_text(part)
                raise

        return encoded_in_parts(encoding, text)

    def encode_within(self, text: str, max_tokens: int) -> list[int]:
        """Encode to at most `max_tokens`: cut the text's end, keep the tokens around it. Raises TokenizerError."""
        max_tokens -= len(self._before) + len(self._after)
        with LibraryFaults("The tokenizer fails on this text"):
            inside = self._encoding(text, add_special_tokens=False)
            backend: Any = self._backend  # each kind takes its own encodings
            inside.truncate(max(0, max_tokens - backend.num_special_tokens_to_add(False)))
            token_ids = backend.post_process(inside, None, True).ids
        return [*self._before, *token_ids, *self._after]

    def encode_pair(self, first: str, second: str, max_tokens: int | None = None) -> tuple[list[int], int | None]:
        """Encode two texts that the model reads together, with the tokens around them.

        Args:
            first: The first text.
            second: The second text.
            max_tokens: Highest number of tokens; the end of the longer text is cut, token by token. None: no limit.

        Returns:
            Token ids, and the index of the second text's first token if the tokenizer distinguishes the texts.

        Raises:
            TokenizerError: The library fails on the texts.
        """
        with LibraryFaults("The tokenizer fails on these texts"):
            one, other = (self._encoding(text, add_special_tokens=False) for text in (first, second))
            if max_tokens is not None:
                room = max(0, max_tokens - self._backend.num_special_tokens_to_add(True))
                lengths = _longest_first(len(one.ids), len(other.ids), room)
                one.truncate(lengths[0])
                other.truncate(lengths[1])
            backend: Any = self._backend  # each kind takes its own encodings
            whole = backend.post_process(one, other, True)
        return whole.ids, whole.type_ids.index(1) if 1 in whole.type_ids else None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids by the library; ids without a token add nothing.

        Raises:
            TokenizerError: An id is negative or has more than 32 bits, or the model's decoder fails on them.
        """
        try:
            with LibraryFaults("The tokenizer's decoder fails on these tokens"):
                if len(token_ids) < LONG:
                    return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
                return self._backend.decode_batch([list(token_ids)], skip_special_tokens=skip_special_tokens)[0]
        except TokenizerError:
            wrong = next((token_id for token_id in token_ids if not 0 <= token_id < 2**32), None)
            if wrong is not None:
                raise TokenizerError(
                    f"{wrong} is not a token id; send ids from 0 to {self.vocab_size - 1} (the vocabulary's last)."
                ) from None
            raise

    def id_to_token(self, token_id: int) -> str | None:
        """Return a token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`); None: there is no such id."""
        return self._backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it; None: there is no such token."""
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds within a text, maybe a part of a character; none for unknown ids."""
        return self.pieces.inside(token_id) or b""

    def _encoding(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding | CompiledEncoding:
        if isinstance(text, str) and len(text) >= LONG:
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return self._backend.token_to_id(token) if isinstance(token, str) else None

    def _special_ids(self) -> frozenset[int]:
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def _mark_special(self) -> None:
        """Make the settings' named tokens special, as transformers does, if tokenizer.json does not."""
        named: list[str] = []
        for value in self.special_tokens.values():
            named.extend([value] if isinstance(value, str) else value)
        # Not tokens without an id, as a new one would point past the model's embedding; and not those that are special
        # already, as tokenizer.json knows how they treat the spaces around them.
        special = self._special_ids()
        ids = {token: self._backend.token_to_id(token) for token in named}
        self._backend.add_special_tokens([token for token, i in ids.items() if i is not None and i not in special])

    def _surrounding_ids(self, config: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Return the tokens that add_bos_token and add_eos_token add around a text.

        They count only if tokenizer.json's post-processor adds nothing, as for some Llama-like models.
        """
        if self._backend.encode("", add_special_tokens=True).ids:
            return [], []
        bos, eos = self.bos_token_id, self.eos_token_id
        before = [bos] if config.get("add_bos_token") is True and bos is not None else []
        after = [eos] if config.get("add_eos_token") is True and eos is not None else []
        return before, after


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts after cutting the longer one until both fit."""
    over = first + second - room
    if over <= 0:
        return first, second
    from_longer = min(over, abs(first - second))
    longer, shorter = max(first, second) - from_longer, min(first, second)
    rest = over - from_longer
    longer, shorter = max(0, longer - (rest + 1) // 2), max(0, shorter - rest // 2)
    return (longer, shorter) if first >= second else (shorter, longer)


def _missing(folder: Path) -> str:
    if not folder.is_dir():
        return f"There is no folder {folder}; give the path of a model's folder."
    found = [name for name in _SLOW_FILES if (folder / name).is_file()]
    if not found:
        return f"{folder} has no tokenizer.json and no other tokenizer file; download the model's tokenizer too."
    return (
        f"{folder} has no tokenizer.json, only {', '.join(found)}; export a fast tokenizer once with transformers: "
        f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def _check_is_text(text: object) -> None:
    """Raise TokenizerError with the reason why the library cannot take a text, if it can be found."""
    if not isinstance(text, str):
        raise TokenizerError(
            f"A text is expected, not a {type(text).__name__}; pass token ids where token ids are taken."
        ) from None
    position = next((n for n, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if position is not None:
        raise TokenizerError(
            f"The text holds half of a surrogate pair (U+{ord(text[position]):04X}) at character {position}; "
            "send the whole character."
        ) from None
