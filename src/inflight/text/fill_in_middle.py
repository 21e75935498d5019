"""Make prompts from which a model fills the gap between two texts, by its fill-in-the-middle (FIM) tokens.

A format is written as its maker documents it: control tokens and placeholders. Text that spells a control token stays
text. Having the tokens does not mean that a model was trained with them: Qwen's chat models have those of Qwen-Coder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from inflight.text.tokenizer import Tokenizer

REPOSITORY, CURRENT_FILE = "repository", "current_file"  # names for models that expect some, where none is known
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_CONTROL = re.compile(r"(▁?<[^<>{}]+>|\[[A-Z]+\])")
_ANCHOR = "☺"  # in no merge of a sentencepiece vocabulary; the makers' own tokenizers use it in the same place
_PREFIX_SHARE = 0.75  # of the room for both texts, where they have to be cut
_BARS = ("<|", "<\uff5c")


class FillFormat(Struct, frozen=True):
    """One maker's format.

    Attributes:
        models: Whose it is.
        gap: The prompt: {files}, {prefix}, {suffix}.
        repository: Begins {files}.
        file: Of each other file: {path}, {text}.
        current: Ends {files}, before the file with the gap.
        ends: Tokens beside those of the format that end the gap's text.
    """

    models: str
    gap: str
    repository: str = ""
    file: str = "{path}\n{text}\n\n"
    current: str = ""
    ends: tuple[str, ...] = ("<|endoftext|>",)


FORMATS = (
    FillFormat(
        "Qwen2.5-Coder, Qwen3-Coder",
        "{files}<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        repository="<|repo_name|>{repository}\n",
        file="<|file_sep|>{path}\n{text}\n",
        current="<|file_sep|>{path}\n",
        ends=("<|endoftext|>", "<|im_end|>", "<|fim_pad|>"),
    ),
    FillFormat(
        "CodeGemma",
        "{files}<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        file="{path}\n{text}<|file_separator|>",
        ends=("<eos>", "<end_of_turn>"),
    ),
    FillFormat(
        "Granite 3.3 and 4",
        "{files}<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        ends=("<|end_of_text|>", "<|fim_pad|>"),
    ),
    FillFormat(
        "StarCoder2",
        "{files}<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
        repository="<repo_name>{repository}",
        file="<file_sep>{path}\n{text}",
        current="<file_sep>",
        ends=("<|endoftext|>", "<fim_pad>"),
    ),
    FillFormat(
        "Granite Code, StarCoder",
        "{files}<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
        ends=("<|endoftext|>", "<fim_pad>"),
    ),
    FillFormat(
        "DeepSeek-Coder",
        "{files}<\uff5cfim▁begin\uff5c>{prefix}<\uff5cfim▁hole\uff5c>{suffix}<\uff5cfim▁end\uff5c>",
        file="#{path}\n{text}\n",
        ends=("<\uff5cend▁of▁sentence\uff5c>", "<|EOT|>"),
    ),
    FillFormat("CodeLlama", "{files}▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>", ends=("▁<EOT>",)),
    FillFormat("CodeLlama (GGUF)", "{files}<PRE>{prefix}<SUF>{suffix}<MID>", ends=("<EOT>",)),
    FillFormat(
        "Codestral",
        "[SUFFIX]{suffix}[PREFIX]{files}{prefix}",
        file="+++++ {path}\n{text}\n\n",
        current="+++++ {path}\n",
        ends=("[MIDDLE]",),
    ),
    FillFormat("GLM-4.5", "{files}<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>"),
)


class ContextFile(Struct, frozen=True):
    """Another file, which the model reads before the gap."""

    path: str
    text: str


class FilledPrompt(Struct, frozen=True):
    """A prompt. truncated: texts were cut, or files left out, to fit."""

    token_ids: tuple[int, ...]
    truncated: bool = False


class FillInMiddle:
    """Prompts of one model.

    Attributes:
        models: Whose format it is.
        stop_token_ids: Tokens that end the gap's text: those of the format, and the model's ends of texts.
    """

    def __init__(self, tokenizer: Tokenizer, fill_format: FillFormat):
        """Look up the format's tokens, all of which the tokenizer has."""
        self._tokenizer, self._format = tokenizer, fill_format
        self.models = fill_format.models
        names = [*_tokens_of(fill_format), *fill_format.ends]
        self._ids = {name: found for name in names if (found := tokenizer.token_to_id(name)) is not None}
        ends = {*self._ids.values(), *(() if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,))}
        self.stop_token_ids = tuple(sorted(ends))
        control = {one.content for one in tokenizer.added_tokens if one.special or one.content.startswith(_BARS)}
        self._encoder = tokenizer.separate_encoder(control | self._ids.keys())
        whole = tokenizer.encode("a")
        alone = tokenizer.encode("a", add_special_tokens=False)
        begin = next((n for n in range(len(whole)) if whole[n : n + len(alone)] == alone), 0)
        self._before = tuple(whole[:begin])  # a token that begins texts; none that ends them
        first = (tokenizer.id_to_token(alone[0]) if alone else "") or ""
        self._adds_space = first.startswith("▁")  # before a text of its own

    def prompt(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[ContextFile] = (),
        path: str = "",
        max_tokens: int | None = None,
    ) -> FilledPrompt:
        """Make a prompt.

        Args:
            prefix, suffix: Texts before and behind the gap.
            files: Other files, the most relevant last.
            path: Of the file with the gap; "": unknown.
            max_tokens: Leave out files, the first ones first, then cut the outer ends of both texts to fit; None: no
                limit.

        Raises:
            TokenizerError: The tokenizer fails on a text.
        """
        texts = {"prefix": self._text(prefix, leads=True), "suffix": self._text(suffix)}
        gap, is_cut = len(self._filled(self._format.gap, {"files": [], "prefix": [], "suffix": []})), False
        room = None if max_tokens is None else max(0, max_tokens - len(self._before) - gap)
        if room is not None and sum(map(len, texts.values())) > room:
            texts, is_cut = _cut(texts["prefix"], texts["suffix"], room), True
        left = None if room is None else room - sum(map(len, texts.values()))
        shown, is_short = self._files(files, path, left)
        ids = self._filled(self._format.gap, {"files": shown, **texts})
        return FilledPrompt((*self._before, *ids), is_cut or is_short)

    def _files(self, files: Sequence[ContextFile], path: str, room: int | None) -> tuple[list[int], bool]:
        """Return the tokens of as many of the last files as there is room for, and whether any was left out."""
        name = {"path": self._text(path or CURRENT_FILE), "repository": self._text(REPOSITORY)}
        current = self._filled(self._format.current, name) if path or files else []
        head = self._filled(self._format.repository, name) if files else []
        shown: list[list[int]] = []
        used = len(head) + len(current)
        for one in reversed(files):
            own = self._filled(self._format.file, {"path": self._text(one.path), "text": self._text(one.text)})
            used += len(own)
            if room is not None and used > room:
                break
            shown.append(own)
        if not shown and room is not None and len(current) > room:
            return [], bool(files)
        parts = [*([head] if shown else []), *reversed(shown), current if shown or path else []]
        return [token_id for part in parts for token_id in part], len(shown) < len(files)

    def _filled(self, template: str, values: Mapping[str, Sequence[int]]) -> list[int]:
        """Return a template's tokens, with these in the places of its placeholders."""
        found: list[int] = []
        for index, piece in enumerate(_PLACEHOLDER.split(template)):
            found += values[piece] if index % 2 else self._literal(piece)
        return found

    def _literal(self, piece: str) -> list[int]:
        found: list[int] = []
        for part in _CONTROL.split(piece):
            found += [self._ids[part]] if part in self._ids else self._text(part)
        return found

    def _text(self, text: str, leads: bool = False) -> list[int]:
        """Return the tokens of a text. leads: with the space that sentencepiece puts before a text of its own, as the
        makers' tokenizers have it before the prefix, and nowhere else."""
        if not text:
            return []
        if leads or not self._adds_space:
            return self._encoder.encode([text])
        anchor, ids = self._encoder.encode([_ANCHOR]), self._encoder.encode([_ANCHOR + text])
        return ids[len(anchor) :] if ids[: len(anchor)] == anchor else self._encoder.encode([text])


def fill_in_middle(tokenizer: Tokenizer, named: Mapping[str, str]) -> FillInMiddle | None:
    """Return the prompts of the first format of which the tokenizer has all tokens; None: it has those of none.

    Args:
        tokenizer: The model's.
        named: Tokens that its files name: prefix, suffix, middle; of a format that is not known here.
    """
    for one in FORMATS:
        if all(tokenizer.token_to_id(name) is not None for name in _tokens_of(one)):
            return FillInMiddle(tokenizer, one)
    if not {"prefix", "suffix", "middle"} <= named.keys():
        return None
    gap = f"{{files}}{named['prefix']}{{prefix}}{named['suffix']}{{suffix}}{named['middle']}"
    given = FillFormat("the model's own", gap)
    return FillInMiddle(tokenizer, given) if set(_tokens_of(given)) == set(named.values()) else None


def _tokens_of(one: FillFormat) -> list[str]:
    return _CONTROL.findall(_PLACEHOLDER.sub("", "\0".join((one.gap, one.repository, one.file, one.current))))


def _cut(prefix: list[int], suffix: list[int], room: int) -> dict[str, list[int]]:
    """Return the prefix's end and the suffix's beginning that fit."""
    of_suffix = min(len(suffix), max(room - int(room * _PREFIX_SHARE), room - len(prefix)))
    of_prefix = room - of_suffix
    return {"prefix": prefix[len(prefix) - of_prefix :] if of_prefix else [], "suffix": suffix[:of_suffix]}


def named_tokens(config: Mapping[str, object], special: Mapping[str, str | Collection[str]]) -> dict[str, str]:
    """Return the FIM tokens that a model's settings name, by what they stand before.

    Args:
        config: Of the tokenizer; `fill_in_middle` is made of a GGUF file's metadata.
        special: Special tokens by their names: CodeLlama's settings have prefix_token, suffix_token, middle_token.
    """
    given = config.get("fill_in_middle")
    if isinstance(given, Mapping):
        return {str(name): str(token) for name, token in given.items()}
    found = {name: special.get(f"{name}_token") for name in ("prefix", "suffix", "middle")}
    return {name: token for name, token in found.items() if isinstance(token, str)}
