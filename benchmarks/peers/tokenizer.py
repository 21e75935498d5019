"""A tokenizer without training: bytes, then all strings of letters by length until the vocabulary is full.

A checkpoint of random weights needs one that every engine loads, that covers each id the model can say, and whose size
is the real vocabulary's. How well it packs text does not matter, for the workload is token ids.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|endoftext|>"
SPECIAL = (END, "<|im_start|>", "<|im_end|>")
_SPACE = "Ġ"  # how byte-level tokenizers write a space
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """tokenizer.json and tokenizer_config.json; the special tokens have the last ids, as in Qwen2."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.islice(_merges(), vocab_size - len(alphabet) - len(SPECIAL)))
    words = [*alphabet, *(left + right for left, right in merges)]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "chat_template": _CHAT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _merges() -> Iterator[tuple[str, str]]:
    """Each string is one that came before and a letter."""
    longest = [_SPACE, *string.ascii_lowercase]
    while True:
        pairs = [(word, letter) for word in longest for letter in string.ascii_lowercase]
        yield from pairs
        longest = [word + letter for word, letter in pairs]
