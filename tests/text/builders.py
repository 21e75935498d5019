"""Small tokenizers of the kinds that models use, trained in a moment on a few lines.

Knows how each kind is put together in tokenizer.json. Does not know what is tested with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The batch waits for the longest request, and the longest request waits for nobody.",
    "hello world, hello there; 12 tokens and 345 more...  two spaces,   three spaces\n\n\tand a tab",
    "naïve café déjà vu, smörgåsbord — «guillemets» … привет мир",
    "日本語のテキスト 漢字 中文文本 한국어 텍스트",
    "😀 😀😃 👩‍👩‍👧 🇫🇷 e\u0301 a\u0308\ufffd",
    "[INST] question [/INST] answer",
]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> Backend:
    """GPT-2, Llama 3, Qwen: every byte has a character. Beside special tokens it has added ones that are not."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=360, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens(["<|begin|>", "<|end|>"])
    backend.add_tokens(["<think>", "two words", "Ωmega"])
    return backend


def llama2() -> Backend:
    """Llama 2, Mistral 7B: sentencepiece BPE, byte fallback, one leading space stripped, <s> in front."""
    backend = _sentencepiece(["<unk>", "<s>", "</s>"])
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return backend


def gemma() -> Backend:
    """Gemma: as Llama 2, but text begins without an added space, and none is stripped."""
    backend = _sentencepiece(["<unk>", "<bos>", "<eos>"])
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def metaspace() -> Backend:
    """Some conversions of sentencepiece: the Metaspace decoder drops the first token's space."""
    backend = _sentencepiece(["<unk>", "<s>", "</s>"])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return backend


def wordpiece() -> Backend:
    """A decoder that this package has no knowledge of: spaces depend on the token before."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    backend.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[END]"], show_progress=False)
    )
    return backend


def undecoded() -> Backend:
    """No decoder at all: the library puts a space between tokens."""
    words = ["<s>", "</s>", *dict.fromkeys(" ".join(CORPUS).split())]
    backend = Backend(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def added_token(content: str) -> dict[str, Any]:
    """A token as tokenizer_config.json spells it at length."""
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"__type": "AddedToken", "content": content, **flags, "special": True}


BUILDERS: dict[str, Callable[[], Backend]] = {
    builder.__name__: builder for builder in (byte_level, llama2, gemma, metaspace, wordpiece, undecoded)
}
CONFIGS: dict[str, dict[str, Any]] = {
    "byte_level": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    "llama2": {"bos_token": added_token("<s>"), "eos_token": added_token("</s>"), "unk_token": "<unk>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "metaspace": {"eos_token": "</s>"},
    "wordpiece": {"eos_token": "[END]"},
    "undecoded": {},
}


def write_folder(folder: Path, backend: Backend | None, config: dict[str, Any] | None = None) -> Path:
    """Lay out a model folder's text files."""
    folder.mkdir(parents=True, exist_ok=True)
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _sentencepiece(special: list[str]) -> Backend:
    """BPE over ▁-words with the 256 byte tokens after the special ones, in the order sentencepiece gives them."""
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    # Characters of the last lines stay out of the vocabulary, so that they need bytes.
    lines = [line.replace("\n", " ").replace("\t", " ") for line in CORPUS[:3]]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    words += ["漢", "日本", "\ufffd", "▁▁"]
    vocab = {token: n for n, token in enumerate([*special, *BYTE_TOKENS, *words])}
    merges = [tuple(merge) for merge in model["merges"]] + [("▁", "▁")]
    backend = Backend(models.BPE(vocab, merges, byte_fallback=True, unk_token=special[0], fuse_unk=True))
    backend.add_special_tokens(special)
    return backend
