"""Heads written down once more, slowly, in torch, as their papers have them; and folders of small random ones.

Knows torch and transformers, whose model is the one whose hidden states are read, and whose layer an MTP head's is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from ..oracle import _randomise
from ..variants import settings_of

VOCAB = 368  # with the end token that the engines of these tests know
Tensors = dict[str, torch.Tensor]
Block = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # token embeddings, hidden states → what the layer yields


@dataclass
class HeadReference:
    """A head. states: of token ids, the hidden states that it reads. block: over all positions. own: what its output is
    as a hidden state. logits: of its output, over the model's tokens, -inf where it has none."""

    folder: Path  # of the model
    head: Path | None  # its own folder
    embed: Callable[[torch.Tensor], torch.Tensor]
    states: Callable[[torch.Tensor], torch.Tensor]
    block: Block
    own: Callable[[torch.Tensor], torch.Tensor]
    to_logits: Callable[[torch.Tensor], torch.Tensor]
    most: int = 64

    @torch.no_grad()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Return logits of the tokens behind the second one: [T - 1, V]."""
        ids = torch.tensor(tokens)
        return self.to_logits(self.block(self.embed(ids[1:]), self.states(ids)[:-1]))

    @torch.no_grad()
    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """The greedy ones behind the tokens."""
        ids, found = torch.tensor(tokens), list[int]()
        states = self.states(ids)[:-1]
        for _ in range(count):
            embedded = self.embed(torch.tensor([*tokens[1:], *found]))
            out = self.block(embedded, states)
            found.append(int(self.to_logits(out[-1:]).argmax()))
            states = torch.cat([states, self.own(out[-1:])])
        return found


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def mtp(variant: str, folder: Path, as_mimo: bool = False) -> HeadReference:
    """A model of a variant with one layer more, which is its head: DeepSeek-V3's and GLM-4.5's names, or MiMo's."""
    family, settings = settings_of(variant)
    layers = settings["num_hidden_layers"]
    config = getattr(transformers, f"{family}Config")(
        **{**settings, "vocab_size": VOCAB, "num_hidden_layers": layers + 1},
        attn_implementation="eager",
        experts_implementation="eager",
    )
    torch.manual_seed(11)
    whole = transformers.AutoModelForCausalLM.from_config(config).eval()
    _randomise(whole, 0)
    width, eps = config.hidden_size, config.rms_norm_eps
    token_norm, hidden_norm, final_norm = (0.5 + torch.rand(width) for _ in range(3))
    join = 0.2 * torch.randn(width, 2 * width)
    _save_with_head(whole, folder, layers, (token_norm, hidden_norm, final_norm, join), as_mimo)
    body = whole.model
    head_layer = body.layers[layers]
    body.layers = body.layers[:layers]
    kept: list[torch.Tensor] = []
    body.norm.register_forward_hook(lambda module, given, out: kept.append((given[0] if as_mimo else out)[0]))

    def states(ids: torch.Tensor) -> torch.Tensor:
        body(ids[None])
        return kept.pop()

    def block(embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        both = rms(embedded, token_norm, eps), rms(hidden, hidden_norm, eps)
        x = torch.cat(both[::-1] if as_mimo else both, -1) @ join.T
        count = len(x)
        mask = torch.full((1, 1, count, count), -torch.inf).triu(1)
        out = head_layer(
            x[None],
            attention_mask=mask,
            position_ids=torch.arange(count)[None],
            position_embeddings=body.rotary_emb(x[None], torch.arange(count)[None]),
        )
        yielded: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return yielded.reshape(count, width)

    def normed(x: torch.Tensor) -> torch.Tensor:
        return rms(x, final_norm, eps)

    return HeadReference(
        folder,
        None,
        embed=lambda ids: body.embed_tokens(ids),
        states=states,
        block=block,
        own=(lambda x: x) if as_mimo else normed,
        to_logits=lambda x: whole.lm_head(normed(x)),
    )


def _save_with_head(whole: Any, folder: Path, layers: int, head: tuple[torch.Tensor, ...], as_mimo: bool) -> None:
    whole.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": layers}
    config.pop("layer_types", None)
    at = f"model.layers.{layers}."
    names = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
    if as_mimo:
        config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo"}
        names = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"{at}{name}.weight": tensor for name, tensor in zip(names, head, strict=True)}
    stored = "model.mtp_layers.0." if as_mimo else at
    save_file(
        {name.replace(at, stored): tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))


def eagle3(folder: Path, head: Path, layers: int = 6, tokens: int = 128, **changes: Any) -> HeadReference:
    """A Llama, and a head over its most frequent tokens."""
    family, settings = settings_of("llama31")
    config = getattr(transformers, f"{family}Config")(
        **{**settings, "vocab_size": VOCAB, "num_hidden_layers": layers}, attn_implementation="eager"
    )
    torch.manual_seed(12)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    _randomise(model, 0)
    model.save_pretrained(folder)
    width, vocab, inner, heads, kv_heads, eps = config.hidden_size, config.vocab_size, 80, 4, 2, 1e-5
    dim = width // heads
    shapes = {
        "fc": (width, 3 * width),
        "midlayer.self_attn.q_proj": (width, 2 * width),
        "midlayer.self_attn.k_proj": (kv_heads * dim, 2 * width),
        "midlayer.self_attn.v_proj": (kv_heads * dim, 2 * width),
        "midlayer.self_attn.o_proj": (width, width),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (tokens, width),
    }
    w = {f"{name}.weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        w[f"midlayer.{name}.weight"] = 0.5 + torch.rand(width)
    w["norm.weight"] = 0.5 + torch.rand(width)
    frequent = torch.randperm(vocab)[:tokens].sort().values
    w["d2t"] = frequent - torch.arange(tokens)
    w["t2d"] = torch.isin(torch.arange(vocab), frequent)
    head.mkdir(parents=True, exist_ok=True)
    save_file(w, head / "model.safetensors")
    said = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": width, "vocab_size": vocab,
        "draft_vocab_size": tokens, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rms_norm_eps": eps, "hidden_act": "silu", "rope_theta": 1e4,
        "max_position_embeddings": 64, "tie_word_embeddings": False, **changes,
    }  # fmt: skip
    (head / "config.json").write_text(json.dumps(said))

    def states(ids: torch.Tensor) -> torch.Tensor:
        seen: Any = model(ids[None], output_hidden_states=True).hidden_states
        return torch.cat([seen[at][0] for at in (2, layers // 2, layers - 3)], -1) @ w["fc.weight"].T

    return HeadReference(
        folder,
        head,
        embed=lambda ids: model.model.embed_tokens(ids),
        states=states,
        block=lambda embedded, hidden: _eagle_block(w, embedded, hidden, heads, eps),
        own=lambda x: x,
        to_logits=lambda x: torch.full((len(x), vocab), -torch.inf).index_copy(
            1, frequent, rms(x, w["norm.weight"], eps) @ w["lm_head.weight"].T
        ),
    )


def _eagle_block(w: Tensors, embedded: torch.Tensor, hidden: torch.Tensor, heads: int, eps: float) -> torch.Tensor:
    def weight(name: str) -> torch.Tensor:
        return w[f"midlayer.{name}.weight"]

    count, width = hidden.shape
    dim = width // heads
    both = torch.cat([rms(embedded, weight("input_layernorm"), eps), rms(hidden, weight("hidden_norm"), eps)], -1)
    q, k, v = ((both @ weight(f"self_attn.{one}_proj").T).view(count, -1, dim).transpose(0, 1) for one in "qkv")
    angles = torch.arange(count)[:, None] * 1e4 ** (-torch.arange(0, dim, 2) / dim)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    groups = heads // len(k)
    k, v = rotated(k).repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
    scores = rotated(q) @ k.transpose(1, 2) * dim**-0.5
    scores = scores + torch.full((count, count), -torch.inf).triu(1)
    attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, width)
    x = hidden + attended @ weight("self_attn.o_proj").T
    y = rms(x, weight("post_attention_layernorm"), eps)
    gate = torch.nn.functional.silu(y @ weight("mlp.gate_proj").T)
    out: torch.Tensor = x + (gate * (y @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    return out
