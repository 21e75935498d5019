"""From a GGUF file's metadata to the config.json that Hugging Face has of the same model.

Knows how llama.cpp's converter names shapes, architecture by architecture, what it leaves out because its own code says
it (Gemma's scale of attention, SmolLM3's layers without rotation), and which tensors are settings in truth (factors of
the rotation). What follows from a config.json, the families know: there is no second reader of shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel

Json = bool | int | float | str | None | Sequence["Json"] | Mapping[str, "Json"]
Config = dict[str, Json]

_MOST_LAYERS = 4096
_SLIDING, _FULL = "sliding_attention", "full_attention"
# Tokens that end an answer, whatever the file calls its end token: llama.cpp looks for them by their spelling, too.
_ENDS = frozenset(
    (
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<turn|>",
        "<EOT>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)


class Keys:
    """Values of a model's own keys: `llama.block_count` is asked for as `block_count`."""

    def __init__(self, model: GGUFModel) -> None:
        self.model, self.architecture = model, model.architecture
        self._metadata = model.metadata

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def find(self, key: str) -> int | None:
        return self._metadata.integer(f"{self.architecture}.{key}")

    def size(self, key: str) -> int:
        """Raises ModelError where it is not there."""
        found = self.find(key)
        if found is None:
            raise self._lacks(key)
        return found

    def number(self, key: str) -> float | None:
        """As Python has it: the file's 32 bits, in the fewest digits that mean them (0.00001, not 0.0000099999997)."""
        found = self._metadata.number(f"{self.architecture}.{key}")
        return found if found is None or not math.isfinite(found) else float(f"{found:.7g}")

    def flag(self, key: str) -> bool | None:
        return self._metadata.flag(f"{self.architecture}.{key}")

    def text(self, key: str) -> str | None:
        return self._metadata.text(f"{self.architecture}.{key}")

    def by_layer(self, key: str) -> list[int]:
        """Of each layer, whether the file says it once or for each."""
        layers = self.layers
        name = f"{self.architecture}.{key}"
        if not self._metadata.is_array(name):
            return [self.size(key)] * layers
        found = [int(one) for one in self._metadata.numbers(name)]
        if len(found) < layers:
            raise ModelError(f"{name} in {self.model.path} has {len(found)} values for {layers} layers.")
        return found[:layers]

    def one(self, key: str) -> int:
        """The same in all layers. Raises ModelError where it is not."""
        found = set(self.by_layer(key))
        if len(found) > 1:
            raise ModelError(
                f"{self.architecture}.{key} in {self.model.path} differs from layer to layer ({shown(sorted(found))}), "
                "which this family is not known to do; take another model."
            )
        return found.pop()

    @property
    def layers(self) -> int:
        """Without those that only predict further tokens, which no answer needs."""
        count = self.size("block_count") - (self.find("nextn_predict_layers") or 0)
        if not 1 <= count <= _MOST_LAYERS:
            raise ModelError(
                f"{self.architecture}.block_count in {self.model.path} makes {count:,} layers; from 1 to "
                f"{_MOST_LAYERS:,} make sense."
            )
        return count

    @property
    def head_dim(self) -> int:
        given = self.find("attention.key_length")
        return self.size("embedding_length") // max(1, self.one("attention.head_count")) if given is None else given

    def has(self, tensor: str) -> bool:
        return tensor in self.model.tensors

    def _lacks(self, key: str) -> ModelError:
        return ModelError(
            f"{self.model.path} lacks the key {self.architecture}.{key}, without which the model's shape is unknown; "
            "convert it again."
        )


def config_of(model: GGUFModel) -> Config:
    """Raises ModelError for an architecture that is not known, and for keys that are missing or of the wrong kind."""
    keys = Keys(model)
    known = _ARCHITECTURES.get(keys.architecture)
    if known is None:
        raise ModelError(
            f"{model.path} holds a model of the architecture {shown(keys.architecture)}, which is not read from GGUF; "
            f"read are {', '.join(sorted(_ARCHITECTURES))}."
        )
    name, own = known
    rope = {} if keys.architecture == "gemma4" else _rope(keys)  # which has one for each kind of layer
    return {**_common(keys), "architectures": [name], **rope, **own(keys)}


def refuse_more_weights(model: GGUFModel, described: int) -> None:
    """Raises ModelError for a file with more weights than its metadata describe: nobody would ask for some of them (a
    bias, a norm), and the answers would be nonsense. One that lacks some is told of by their names when it is loaded.

    Factors of the rotation and of whole layers are settings, and further layers only predict further tokens
    (`Keys.layers`). Keys and values of layers that read another's may be there, and mean nothing.
    """
    keys = Keys(model)
    layers, own = keys.layers, keys.layers - (keys.find("attention.shared_kv_layers") or 0)
    held = sum(
        math.prod(entry.shape)
        for name, (_, entry) in model.tensors.items()
        if not name.startswith("rope_")
        and _layer(name) < layers
        and not name.endswith("layer_output_scale.weight")
        and not (_layer(name) >= own and name.split(".")[2].startswith(("attn_k", "attn_v")))
    )
    if held > described:
        raise ModelError(
            f"{model.path} holds {held:,} weights, {held - described:,} more than models of the shape in its metadata "
            "have; it is of another kind than it says, so take another file, or the model's safetensors."
        )


def _layer(name: str) -> int:
    """Number of the layer that a tensor is of; -1 for what is around them."""
    number = name.split(".")[1] if name.startswith("blk.") else ""
    return int(number) if number.isdecimal() and len(number) < 6 else -1


def generation_of(model: GGUFModel) -> Config:
    """How the model's authors would have it sampled, as generation_config.json says it."""
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names["penalty_repeat"] = "repetition_penalty"
    given = {name: model.metadata.number(f"general.sampling.{key}") for key, name in names.items()}
    return {name: value if value is None else float(f"{value:.7g}") for name, value in given.items()}


def _common(keys: Keys) -> Config:
    table = keys.model.shape("token_embd.weight")
    if table is None or len(table) != 2:
        raise ModelError(f"{keys.model.path} has no table token_embd.weight, so it is no language model; take another.")
    kinds = [entry.type.name for _, entry in keys.model.tensors.values() if len(entry.shape) > 1]
    metadata = keys.model.metadata
    return {
        "vocab_size": table[0],
        "hidden_size": keys.size("embedding_length"),
        "intermediate_size": _mlp_width(keys) if "feed_forward_length" in keys else None,
        "num_hidden_layers": keys.layers,
        "num_attention_heads": keys.one("attention.head_count"),
        "num_key_value_heads": _kv_heads(keys),
        "head_dim": keys.head_dim,
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not keys.has("output.weight"),
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_tokens(keys),
        "torch_dtype": max(set(kinds), key=kinds.count),
        "quantization_config": _quantization(keys),
    }


def _mlp_width(keys: Keys) -> int:
    """Of Gemma 4's first layer, than which later ones may be wider."""
    return keys.by_layer("feed_forward_length")[0] if keys.architecture == "gemma4" else keys.one("feed_forward_length")


def _kv_heads(keys: Keys) -> int:
    """Of layers with attention; those of LFM2 without say 0, and those of Gemma 4 that see all may have others."""
    if keys.architecture == "gemma4":
        return _by_kind(keys, "attention.head_count_kv")[_SLIDING]
    name = "attention.head_count_kv" if "attention.head_count_kv" in keys else "attention.head_count"
    return max(keys.by_layer(name)) if keys.architecture == "lfm2" else keys.one(name)


def _quantization(keys: Keys) -> Config | None:
    """Of the matrices of layers, which a file mixes types of: bits of most elements, and what one takes on average as
    this engine holds it; the same of the output projection, if that is quantized."""
    count = {4: 0, 8: 0, 16: 0}
    taken = 0.0
    for name, (_, entry) in keys.model.tensors.items():
        if name.startswith("blk.") and len(entry.shape) > 1:
            elements, held = math.prod(entry.shape), entry.type.held_bytes
            count[4 if held < 1 else 8 if held == 1 else 16] += elements
            taken += elements * held
    if not count[4] and not count[8]:
        return None
    bits = 4 if count[4] >= count[8] else 8
    _, head = keys.model.tensors["output.weight" if keys.has("output.weight") else "token_embd.weight"]
    return {
        "quant_method": "gguf",
        "bits": bits,
        "element_bytes": taken / sum(count.values()),
        "head_bytes": None if head.type.is_plain else float(head.type.held_bytes),
    }


def _end_tokens(keys: Keys) -> list[int]:
    metadata = keys.model.metadata
    named = [metadata.integer(f"tokenizer.ggml.{one}_token_id") for one in ("eos", "eot", "eom")]
    tokens, types = metadata.texts("tokenizer.ggml.tokens"), metadata.numbers("tokenizer.ggml.token_type")
    spelled = {token: at for at, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind in (3, 4)}
    ends = {token: at for token, at in spelled.items() if token in _ENDS}
    if keys.architecture in ("glm4", "glm4moe") and "<|user|>" in spelled:  # which begins what others say
        ends["<|user|>"] = spelled["<|user|>"]
    if "<|return|>" in ends and "<|call|>" in ends:  # of Harmony, where <|end|> ends one message of an answer
        ends.pop("<|end|>", None)
    return sorted({*(one for one in named if one is not None), *ends.values()})


# -- rotation ----------------------------------------------------------------------------------------------------------
def _rope(keys: Keys) -> Config:
    """`rope_theta` and `rope_scaling` in the spelling that all families read."""
    theta = keys.number("rope.freq_base") or 10_000.0
    rotated = keys.find("rope.dimension_count")
    found: Config = {"rope_theta": theta}
    if rotated is not None and rotated != keys.head_dim:
        found["partial_rotary_factor"] = rotated / keys.head_dim
    scaling = _scaling(keys, theta, rotated or keys.head_dim)
    return found if scaling is None else {**found, "rope_scaling": scaling}


def _scaling(keys: Keys, theta: float, rotated: int) -> Config | None:
    factors = keys.model.floats("rope_freqs.weight")
    if factors is not None and any(one != 1 for one in factors):
        return _llama3(keys, factors, theta, rotated)
    short, long = (keys.model.floats(f"rope_factors_{one}.weight") for one in ("short", "long"))
    original = keys.find("rope.scaling.original_context_length")
    if long is not None and short is not None:
        digits = [[float(f"{one:.7g}") for one in part] for part in (short, long)]
        scaling: Config = {"rope_type": "longrope", "short_factor": digits[0], "long_factor": digits[1]}
        return {**scaling, "original_max_position_embeddings": original}
    kind, factor = keys.text("rope.scaling.type"), keys.number("rope.scaling.factor")
    if kind in (None, "none") or factor in (None, 0, 1):
        return None
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        return scaling | _yarn(keys, original)
    return scaling


def _yarn(keys: Keys, original: int | None) -> Config:
    multiplier = keys.number("rope.scaling.yarn_log_multiplier")  # a tenth of mscale_all_dim
    found: Config = {
        "original_max_position_embeddings": original,
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast") or 32.0,
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow") or 1.0,
        "attention_factor": keys.number("rope.scaling.attn_factor"),
    }
    return found if multiplier is None else {**found, "mscale": multiplier * 10, "mscale_all_dim": multiplier * 10}


def _llama3(keys: Keys, factors: Sequence[float], theta: float, rotated: int) -> Config:
    """The four numbers of which the converter made the divisors of the frequencies.

    low_freq_factor, high_freq_factor and the original length appear in them only as ratios, so 1 and 4, which all
    published models have, lose nothing; the length is the one whose divisors are these. Frequencies are then computed
    as of a config.json, which is exact, where the file's divisors are rounded.
    """
    factor = max(factors)
    for original in (8192, 4096, 2048, 16_384, 32_768, 65_536, 131_072):
        made = [_divisor(theta ** (2 * at / rotated), factor, original) for at in range(rotated // 2)]
        if len(made) == len(factors) and all(
            math.isclose(one, other, rel_tol=1e-4) for one, other in zip(made, factors, strict=True)
        ):
            return {
                "rope_type": "llama3",
                "factor": float(f"{factor:.7g}"),
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise ModelError(
        f"rope_freqs.weight in {keys.model.path} divides the frequencies of the rotation by up to {factor:g}, and not "
        "as Llama 3 does, which is the one rule that is known for it; take another model."
    )


def _divisor(wavelength_over_2_pi: float, factor: float, original: int) -> float:
    wavelength = 2 * math.pi * wavelength_over_2_pi
    if wavelength < original / 4:
        return 1.0
    if wavelength > original:
        return factor
    smooth = (original / wavelength - 1) / 3
    return 1 / ((1 - smooth) / factor + smooth)


# -- architectures -----------------------------------------------------------------------------------------------------
def _llama(keys: Keys) -> Config:
    """Llama, Mistral and what is shaped like them; with experts it is Mixtral."""
    inputs, outputs = keys.has("blk.0.attn_q.bias"), keys.has("blk.0.attn_output.bias")
    if inputs != outputs:
        raise ModelError(f"{keys.model.path} has biases of only some projections of attention, which Llama has not.")
    found: Config = {"attention_bias": inputs, "mlp_bias": keys.has("blk.0.ffn_gate.bias")}
    if not keys.find("expert_count"):
        return found
    picked = {"num_local_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}
    return {**picked, "architectures": ["MixtralForCausalLM"]}


def _qwen3(keys: Keys) -> Config:
    return {"attention_bias": keys.has("blk.0.attn_q.bias")}


def _experts(keys: Keys, count: str = "num_experts") -> Config:
    return {
        count: keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": _expert_width(keys),
    }


def _expert_width(keys: Keys) -> int:
    found = keys.find("expert_feed_forward_length")
    shape = keys.model.shape(f"blk.{keys.layers - 1}.ffn_down_exps.weight")
    if found is None and shape is not None:  # files of the first converters
        return shape[-1]
    return keys.size("expert_feed_forward_length") if found is None else found


def _qwen2moe(keys: Keys) -> Config:
    shared = keys.model.shape("blk.0.ffn_up_shexp.weight")
    found = keys.find("expert_shared_feed_forward_length")
    return {
        **_experts(keys),
        "shared_expert_intermediate_size": found if found is not None else shared[0] if shared else 0,
        "norm_topk_prob": False,
    }


def _qwen3moe(keys: Keys) -> Config:
    return {**_experts(keys), **_qwen3(keys), "norm_topk_prob": True}


def _gemma(keys: Keys) -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Config:
    """The scale of attention is in no key: the head's size, but of the largest models hidden size by heads."""
    largest = {"gemma2": 46, "gemma3": 62}[keys.architecture] == keys.layers
    scale = keys.size("embedding_length") // keys.one("attention.head_count") if largest else keys.head_dim
    return {
        **_gemma(keys),
        "query_pre_attn_scalar": scale,
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": _layer_types(keys, 2 if keys.architecture == "gemma2" else 6),
    }


def _gemma3(keys: Keys) -> Config:
    """Layers with a window rotate by a base of their own, unscaled."""
    return {**_gemma2(keys), "rope_local_base_freq": keys.number("rope.freq_base_swa") or 10_000.0}


def _gemma4(keys: Keys) -> Config:
    """Its lists by layer as what two kinds of layers have. That keys are values, the file says by having none."""
    types, kinds = _layer_types(keys, 6), _by_kind(keys, "attention.head_count_kv")
    widths, shared = keys.by_layer("feed_forward_length"), keys.find("attention.shared_kv_layers") or 0
    inputs = keys.find("embedding_length_per_layer_input") or 0
    table = keys.model.shape("per_layer_token_embd.weight") if inputs else None
    full = types.index(_FULL) if _FULL in types else 0
    found: Config = {
        **_gemma(keys),
        "head_dim": keys.find("attention.key_length_swa") or keys.head_dim,
        "global_head_dim": keys.head_dim,
        "num_global_key_value_heads": kinds[_FULL],
        "attention_k_eq_v": not keys.has(f"blk.{full}.attn_v.weight"),
        "layer_types": types,
        "sliding_window": keys.find("attention.sliding_window"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": widths[-1] == 2 * widths[0],
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": None if table is None else table[0],
        "rope_parameters": _rope_by_kind(keys),
    }
    if not keys.find("expert_count"):
        return found
    picked = {"enable_moe_block": True, "top_k_experts": keys.size("expert_used_count")}
    return {**found, **_experts(keys), **picked}


def _by_kind(keys: Keys, key: str) -> dict[str, int]:
    """Of layers with a window and of those that see all. Raises ModelError where layers of a kind differ."""
    values, types = keys.by_layer(key), _layer_types(keys, 6)
    found = {
        kind: {value for value, one in zip(values, types, strict=True) if one == kind} for kind in (_SLIDING, _FULL)
    }
    if any(len(one) > 1 for one in found.values()):
        raise ModelError(
            f"{keys.architecture}.{key} in {keys.model.path} differs among layers of one kind ({shown(values)}), which "
            "this family is not known to do; take another model."
        )
    return {kind: next(iter(one), values[0]) for kind, one in found.items()}


def _rope_by_kind(keys: Keys) -> Config:
    """Of the whole head's pairs in layers that see all, those turn whose frequency is divided by 1, not by 10³⁰."""
    factors = keys.model.floats("rope_freqs.weight")
    turned = 1.0 if factors is None else sum(one == 1 for one in factors) / len(factors)
    return {
        _FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": turned,
            "rope_theta": keys.number("rope.freq_base") or 1e6,
        },
        _SLIDING: {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa") or 1e4},
    }


def _layer_types(keys: Keys, period: int) -> list[str]:
    """By the file's list, where it has one; else each `period`-th layer sees all."""
    name = f"{keys.architecture}.attention.sliding_window_pattern"
    if keys.model.metadata.is_array(name):
        windows = [bool(one) for one in keys.by_layer("attention.sliding_window_pattern")]
    else:
        period = keys.find("attention.sliding_window_pattern") or period
        windows = [(layer + 1) % period != 0 for layer in range(keys.layers)]
    return [_SLIDING if one else _FULL for one in windows]


def _phi3(keys: Keys) -> Config:
    original = keys.find("rope.scaling.original_context_length")
    return {
        "sliding_window": keys.find("attention.sliding_window") or None,
        "original_max_position_embeddings": keys.size("context_length") if original is None else original,
    }


def _gpt_oss(keys: Keys) -> Config:
    found = _experts(keys, "num_local_experts")
    return {
        **found,
        "intermediate_size": found.pop("moe_intermediate_size"),
        "attention_bias": True,
        "sliding_window": keys.find("attention.sliding_window"),
        "layer_types": _layer_types(keys, 2),
        "rope_scaling": {**scaling, "truncate": False} if (scaling := _mapping(_rope(keys))) else None,
    }


def _mapping(rope: Config) -> Config | None:
    found = rope.get("rope_scaling")
    return dict(found) if isinstance(found, Mapping) else None


def _smollm3(keys: Keys) -> Config:
    """Every fourth layer does not rotate, which is in no key."""
    return {**_llama(keys), "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(keys.layers)]}


def _olmo2(keys: Keys) -> Config:
    """OLMo 3 is the same architecture with windows."""
    window = keys.find("attention.sliding_window")
    if not window:
        return {}
    types = _layer_types(keys, 4)
    return {"architectures": ["Olmo3ForCausalLM"], "sliding_window": window, "layer_types": types}


def _granite(keys: Keys) -> Config:
    return {
        **_llama(keys),
        "embedding_multiplier": keys.number("embedding_scale") or 1.0,
        "residual_multiplier": keys.number("residual_scale") or 1.0,
        "attention_multiplier": keys.number("attention.scale") or keys.head_dim**-0.5,
        "logits_scaling": keys.number("logit_scale") or 1.0,
    }


def _glm4(keys: Keys) -> Config:
    return {"attention_bias": keys.has("blk.0.attn_q.bias")}


def _glm4moe(keys: Keys) -> Config:
    return {
        **_glm4(keys),
        **_experts(keys, "n_routed_experts"),
        **_routing(keys),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
    }


def _routing(keys: Keys) -> Config:
    """Of routers that pick within groups, beside shared experts and behind dense layers."""
    return {
        "n_shared_experts": keys.find("expert_shared_count") or 0,
        "first_k_dense_replace": keys.find("leading_dense_block_count") or 0,
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(keys.flag("expert_weights_norm")),
        "n_group": keys.find("expert_group_count") or 1,
        "topk_group": keys.find("expert_group_used_count") or 1,
    }


def _deepseek2(keys: Keys) -> Config:
    """V2, and V3 where the router's scores are sigmoids. key_length is that of one head, or of the compressed form
    (then `key_length_mla` has the head's)."""
    sigmoid = keys.find("expert_gating_func") == 2
    rotated = keys.size("rope.dimension_count")
    keys_width = keys.find("attention.key_length_mla") or keys.size("attention.key_length")
    found: Config = {
        **_experts(keys, "n_routed_experts"),
        **_routing(keys),
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "kv_lora_rank": keys.size("attention.kv_lora_rank"),
        "q_lora_rank": keys.find("attention.q_lora_rank") or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys_width - rotated,
        "v_head_dim": keys.find("attention.value_length_mla") or keys.size("attention.value_length"),
        "head_dim": rotated,
        "num_key_value_heads": keys.one("attention.head_count"),
        "partial_rotary_factor": 1.0,
    }
    return {**found, "scoring_func": "sigmoid", "topk_method": "noaux_tc"} if sigmoid else found


def _lfm2(keys: Keys) -> Config:
    """Layers without heads of keys and values are convolutions."""
    full = [heads > 0 for heads in keys.by_layer("attention.head_count_kv")]
    return {
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [_FULL if one else "conv" for one in full],
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.in_proj.bias") for name in keys.model.tensors),
    }


def _qwen35(keys: Keys) -> Config:
    """Gated DeltaNet in all layers but each `full_attention_interval`-th. The rotation has sections for images, which
    texts leave equal."""
    heads = max(1, keys.size("ssm.time_step_rank"))
    return {
        "full_attention_interval": keys.find("full_attention_interval") or 4,
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.size("ssm.inner_size") // heads,
    }


def _qwen35moe(keys: Keys) -> Config:
    shared = keys.find("expert_shared_feed_forward_length") or 0
    return {**_qwen35(keys), **_experts(keys), "shared_expert_intermediate_size": shared, "norm_topk_prob": True}


def _nothing(keys: Keys) -> Config:
    return {}


_ARCHITECTURES: dict[str, tuple[str, Callable[[Keys], Config]]] = {
    "llama": ("LlamaForCausalLM", _llama),
    "qwen2": ("Qwen2ForCausalLM", _nothing),
    "qwen2moe": ("Qwen2MoeForCausalLM", _qwen2moe),
    "qwen3": ("Qwen3ForCausalLM", _qwen3),
    "qwen3moe": ("Qwen3MoeForCausalLM", _qwen3moe),
    "qwen3next": ("Qwen3NextForCausalLM", _qwen35moe),
    "qwen35": ("Qwen3_5ForCausalLM", _qwen35),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", _qwen35moe),
    "gemma": ("GemmaForCausalLM", _gemma),
    "gemma2": ("Gemma2ForCausalLM", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
    "gemma4": ("Gemma4ForCausalLM", _gemma4),
    "phi3": ("Phi3ForCausalLM", _phi3),
    "gpt-oss": ("GptOssForCausalLM", _gpt_oss),
    "smollm3": ("SmolLM3ForCausalLM", _smollm3),
    "olmo2": ("Olmo2ForCausalLM", _olmo2),
    "granite": ("GraniteForCausalLM", _granite),
    "glm4": ("Glm4ForCausalLM", _glm4),
    "glm4moe": ("Glm4MoeForCausalLM", _glm4moe),
    "deepseek2": ("DeepseekV2ForCausalLM", _deepseek2),
    "lfm2": ("Lfm2ForCausalLM", _lfm2),
}
