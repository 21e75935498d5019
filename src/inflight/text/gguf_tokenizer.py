"""Make the library's tokenizer from a GGUF file's metadata, equal to that of the model's tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from inflight.json_file import shown
from inflight.models.gguf.gguf_model import GGUFModel

from .errors import TokenizerError, is_fault

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # token types
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
SENTENCEPIECE = ("llama", "gemma4")
# Fill-in-the-middle: what stands behind each token, by the key's name in files of today and in older ones.
_FILL = {"prefix": ("fim_pre", "prefix"), "suffix": ("fim_suf", "suffix"), "middle": ("fim_mid", "middle")}
_AGAIN = "convert the model again, or take another file."


def read_gguf_tokenizer_config(model: GGUFModel) -> dict[str, Any]:
    """Return the settings of tokenizer_config.json: named tokens, whether they surround a text, chat templates."""
    metadata = model.metadata
    config: dict[str, Any] = {}

    def token_of(key: str) -> str | None:
        number = metadata.token_id(f"{KEY}{key}_token_id")
        known = number is not None and 0 <= number < metadata.length(KEY + "tokens")
        return metadata.text_of(KEY + "tokens", number) if known and number is not None else None

    for key, name in _NAMED.items():
        if (token := token_of(key)) is not None:
            config[f"{name}_token"] = token
    config["fill_in_middle"] = {
        name: token for name, keys in _FILL.items() if (token := next(filter(None, map(token_of, keys)), None))
    }
    begins = metadata.flag(KEY + "add_bos_token")
    kind, pre = metadata.text(KEY + "model"), metadata.text(KEY + "pre") or ""
    config["add_bos_token"] = (kind == "llama" or pre in BEGIN_BY_DEFAULT) if begins is None else begins
    config["add_eos_token"] = bool(metadata.flag(KEY + "add_eos_token"))
    template = metadata.text("tokenizer.chat_template")
    if template is not None:
        named = [one for one in metadata if one.startswith("tokenizer.chat_template.")]
        further = [{"name": one.rpartition(".")[2], "template": metadata.text(one)} for one in named]
        config["chat_template"] = [{"name": "default", "template": template}, *further] if further else template
    return config


def gguf_backend(model: GGUFModel) -> tokenizers.Tokenizer:
    """Make the tokenizer. Raises TokenizerError for an unsupported kind of vocabulary, or an inconsistent one."""
    metadata = model.metadata
    kind = metadata.text(KEY + "model")
    if kind not in ("gpt2", *SENTENCEPIECE):
        raise TokenizerError(
            f"{model.path} has a vocabulary of the kind {shown(kind)}; read are gpt2 (byte-level BPE) and llama "
            "(sentencepiece BPE). Take another file, or a folder with a tokenizer.json."
        )
    tokens = metadata.texts(KEY + "tokens")
    types = list(map(int, metadata.numbers(KEY + "token_type"))) or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise TokenizerError(f"{model.path} has {len(tokens):,} tokens, but types of {len(types):,}; {_AGAIN}")
    try:
        backend = _byte_level(model, tokens, types) if kind == "gpt2" else _sentencepiece(model, tokens, types)
        _add_tokens(backend, tokens, types)
    except BaseException as error:
        if isinstance(error, TokenizerError) or not is_fault(error) or isinstance(error, MemoryError):
            raise
        raise TokenizerError(f"The vocabulary in {model.path} makes no tokenizer: {error}; {_AGAIN}") from error
    return backend


def _byte_level(model: GGUFModel, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    """Make a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen): each byte has a character; text is split, then merged."""
    from tokenizers import Tokenizer, decoders, models

    pre = model.metadata.text(KEY + "pre") or "default"
    merges = _written_merges(model)
    bpe = models.BPE(_vocabulary(tokens, types), merges, ignore_merges=pre in IGNORE_MERGES)
    backend = Tokenizer(bpe)
    splits = pre_tokenizer_of(pre)
    if splits is None:
        raise TokenizerError(
            f"{model.path} has texts split in a way that is not known here (tokenizer.ggml.pre is {shown(pre)}); take "
            "a folder with the model's tokenizer.json."
        )
    backend.pre_tokenizer = splits.pre_tokenizer
    if splits.normalizer is not None:
        backend.normalizer = splits.normalizer
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(model: GGUFModel, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    """Make a sentencepiece BPE tokenizer (Llama 2, Mistral, Gemma): spaces are ▁, unknown characters become bytes.

    The converter writes runs of spaces unchanged if the vocabulary has ▁▁.
    """
    from tokenizers import Tokenizer, models

    respelled = ["▁" * len(token) if len(token) > 1 and not token.strip(" ") else token for token in tokens]
    vocabulary = _vocabulary(respelled, types)
    merges = _written_merges(model) or _merges_of(vocabulary, _ranks(model, respelled))
    unknown = unknown_token(model, types)
    named = {} if unknown is None or not 0 <= unknown < len(tokens) else {"unk_token": respelled[unknown]}
    has_bytes = all(token in vocabulary for token in BYTES)
    backend = Tokenizer(models.BPE(vocabulary, merges, fuse_unk=True, byte_fallback=has_bytes, **named))
    prefixed = is_prefixed(model)
    backend.normalizer = sentencepiece_normalizer(prefixed)
    backend.decoder = sentencepiece_decoder(prefixed)
    return backend


def sentencepiece_normalizer(prefixed: bool) -> tokenizers.normalizers.Normalizer:
    """Make the normalizer. prefixed: a space is put before each text."""
    from tokenizers import normalizers

    spaces = normalizers.Replace(" ", "▁")
    return normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefixed else spaces


def sentencepiece_decoder(prefixed: bool) -> tokenizers.decoders.Sequence:
    """Make the decoder. prefixed: a text's first space was put before it."""
    from tokenizers import decoders

    decoder = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*decoder, decoders.Strip(" ", 1, 0)] if prefixed else decoder)


def is_prefixed(model: GGUFModel) -> bool:
    """Return whether a space is put before each text."""
    prefixed = model.metadata.flag(KEY + "add_space_prefix")
    return model.metadata.text(KEY + "model") == "llama" if prefixed is None else prefixed


def unknown_token(model: GGUFModel, types: Sequence[int]) -> int | None:
    """Return the token for unknown characters, by the file's key or the token's type."""
    unknown = model.metadata.token_id(KEY + "unknown_token_id")
    return types.index(_UNKNOWN) if unknown is None and _UNKNOWN in types else unknown


def _vocabulary(tokens: list[str], types: list[int]) -> dict[str, int]:
    """Return the vocabulary without padding such as `[PAD151646]`; of equal tokens, the first one counts."""
    numbers = [at for at, kind in enumerate(types) if kind != _UNUSED or not tokens[at].startswith("[PAD")]
    kept = [tokens[at] for at in numbers]
    found = dict(zip(kept, numbers, strict=True))
    if len(found) < len(kept):  # of equal ones the last has been taken
        found.update(zip(reversed(kept), reversed(numbers), strict=True))
    return found


def _written_merges(model: GGUFModel) -> list[tuple[str, str]]:
    """Return the merges as pairs, which the first space after the first character divides."""
    merges = model.metadata.texts(KEY + "merges")
    spaces = [merge.find(" ", 1) for merge in merges]
    if -1 in spaces:
        wrong = merges[spaces.index(-1)]
        raise TokenizerError(f"{model.path} has the merge {shown(wrong)}, which are no two tokens; {_AGAIN}")
    return [(merge[:at], merge[at + 1 :]) for merge, at in zip(merges, spaces, strict=True)]


def _ranks(model: GGUFModel, tokens: list[str]) -> list[float]:
    """Return the merge priority of each token, the highest first: its score.

    Gemma's scores do not follow the order of its merges; the order of its tokens does.
    """
    scores = [float(one) for one in model.metadata.numbers(KEY + "scores")]
    if model.architecture.startswith("gemma") or not scores:
        return [-float(number) for number in range(len(tokens))]
    if len(scores) != len(tokens):
        raise TokenizerError(f"{model.path} has {len(tokens):,} tokens, but scores of {len(scores):,}; {_AGAIN}")
    return scores


def _merges_of(vocabulary: dict[str, int], ranks: list[float]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, the best token's first, as sentencepiece merges neighbours.

    Of equally good tokens the pairs with the longest left one go first.
    """
    found: list[tuple[str, str]] = []
    last, is_tied = None, False
    for token in sorted(vocabulary, key=lambda one: -ranks[vocabulary[one]]):
        before = len(found)
        for at in range(len(token) - 1, 0, -1):
            if token[at:] in vocabulary and token[:at] in vocabulary:
                found.append((token[:at], token[at:]))
        if len(found) > before:
            rank = ranks[vocabulary[token]]
            is_tied |= rank == last
            last = rank
    if is_tied:
        found.sort(key=lambda pair: (-ranks[vocabulary[pair[0] + pair[1]]], -len(pair[0])))
    return found


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Add control tokens as special tokens, and user-defined ones as added tokens, which are matched whole."""
    from tokenizers import AddedToken

    def of(kinds: tuple[int, ...], special: bool) -> list[AddedToken]:
        named = (tokens[at] for at, kind in enumerate(types) if kind in kinds)
        return [
            AddedToken(token, normalized=False, special=special)
            for token in named
            if token and backend.token_to_id(token) is not None
        ]

    backend.add_special_tokens(of((_UNKNOWN, _CONTROL), special=True))
    backend.add_tokens(of((_USER_DEFINED,), special=False))


# -- how byte-level models split texts before merging, by the names of `tokenizer.ggml.pre`: as in their tokenizer.json
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
        *(
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
        ),
        *("smaug-bpe", "glm4", "chatglm-bpe"),
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
