"""The built-in model's tokenizer: how text is cut, the marks of the chat form, and the template that writes them.

What it knows: bytes, pairs and marks. What it does not know: what the texts say.
"""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, END_OF_TEXT = "<|end|>", "<|endoftext|>"
ROLES = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|tool|>"}
SPECIAL_TOKENS = [END_OF_TEXT, END, *ROLES.values()]
CALL_MARKS = ["<tool_call>", "</tool_call>"]  # one token each, but no special ones: a call is part of what is said
VOCABULARY = 2048
MAX_LENGTH = 1024
CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")

# A space belongs to the lower-case word behind it. Names and numbers are cut without it, and digits one by one, so that
# the same value has the same tokens in a sentence and between the quotes of JSON: it can be copied as it stands.
PIECES = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{Ll}+|\p{Lu}\p{L}*|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL_TOKENS, *(AddedToken(mark, special=False, normalized=False) for mark in CALL_MARKS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=list(ROLES.values()),
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
