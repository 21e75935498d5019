"""Define how byte-level BPE models split text before merging, by the names of `tokenizer.ggml.pre`.

The patterns are those of the models' tokenizer.json files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _REST
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _REST
_SEED = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(end: str, digits: str) -> str:
    """Return a pattern of words by case: words that begin with capitals, and words all in capitals."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{end}|{before}{_UPPER}+{_LOWER}*{end}"
    return words + f"|{digits}" + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _REST


_TEKKEN = _by_case("", r"\p{N}")
_GPT_4O = _by_case(_CONTRACTIONS + "?", r"\p{N}{1,3}")
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    _CJK,
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _REST,
)
_HAN_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED = r"\s?[\p{Lu}\p{Ll}\p{Lt}]+"  # which the models' files spell out as ranges
_MARKS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK = (r"[\r\n]", _CASED, _MARKS, r"\s+$", _HAN_AND_HANGUL, r"\p{N}+")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]")

_PATTERNS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("default",): _DEFAULT,
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "dbrx",
        "smaug-bpe",
        "glm4",
        "chatglm-bpe",
    ): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"): (_QWEN2,),
    ("qwen35",): (_QWEN35,),
    ("seed-coder",): (_SEED,),
    ("tekken",): (_TEKKEN,),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): (_GPT_4O,),
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0"): (
        _GPT_2,
    ),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"): (r"\p{N}", _GPT_2),
    ("deepseek-v3", "hunyuan-dense"): _DEEPSEEK_3,
    ("deepseek-coder",): _DEEPSEEK_CODER,
    ("deepseek-llm",): _DEEPSEEK,
}
_BY_NAME = {name: patterns for names, patterns in _PATTERNS.items() for name in names}
# Whose tokenizer.json composes characters (NFC) first.
_COMPOSES = frozenset(("qwen2", "qwen35", "deepseek-r1-qwen"))
# What is a token as a whole is not merged from pieces.
IGNORE_MERGES = frozenset(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"))
BEGIN_BY_DEFAULT = IGNORE_MERGES  # whose texts begin with the beginning token where the file does not say


class Splits(NamedTuple):
    """A splitter. normalizer: composes characters (NFC) first; None: text is unchanged."""

    pre_tokenizer: pre_tokenizers.Sequence
    normalizer: normalizers.NFC | None


def pre_tokenizer_of(name: str) -> Splits | None:
    """Return the splitter of a name; None for an unknown one."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    patterns = _BY_NAME.get(name)
    if patterns is None:
        return None
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return Splits(pre_tokenizers.Sequence([*splits, bytes_alone]), normalizers.NFC() if name in _COMPOSES else None)
