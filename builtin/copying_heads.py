"""Weights to begin with: two pairs of heads that copy, and layers that add nothing yet.

What it knows: how a head of the first layer finds the token before, and one of the second finds what stood behind an
earlier copy of the token at hand, and repeats it. What it does not know: text. From random weights such heads form
late, if at all; where they are there from the first step, training only has to tune them.

All token vectors share a part along one direction. It moves all logits alike, and so changes no probability; the first
heads' queries and keys are made of it and see nothing but positions. Of a query's and a key's numbers, the low
frequencies of rotary positions hardly turn over a prompt's length: on these tokens are compared.
"""

import math

import torch
from transformers import LlamaForCausalLM

SHARED = 0.35  # of a token's vector along the shared direction; the rest is 0.05 in each dimension, 0.7 in all
TURNING, STILL = range(4), range(8, 16)  # pairs of a head's numbers, from high frequency to low
AT_POSITIONS = 1.1  # weights of the first heads' queries and keys
NOTED = 0.15  # of the token before, as it is written into its place beside the token
COMPARED = 2.9  # weights of the second heads' queries and keys
REPEATED = 0.8  # of the token that was found, as it is written over the prediction


@torch.no_grad()
def begin_copying(model: LlamaForCausalLM) -> None:
    config = model.config
    size, width = config.head_dim, config.hidden_size
    group = config.num_attention_heads // config.num_key_value_heads
    shared = torch.full((width,), width**-0.5)
    model.get_input_embeddings().weight.add_(SHARED * shared)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    places = _directions(config.num_key_value_heads * 3 * size, width, shared)
    for number in range(config.num_key_value_heads):
        said, noted, found = places[3 * size * number : 3 * size * (number + 1)].split(size)
        _find_token_before(model.model.layers[0].self_attn, number, number * group, shared, said, noted)
        _find_what_followed(model.model.layers[1].self_attn, number, number * group, said, noted, found)


def _directions(count: int, width: int, shared: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, at right angles to one another and to what is shared."""
    drawn = torch.cat([shared[:, None], torch.randn(width, width - 1)], 1)
    return torch.linalg.qr(drawn).Q.T[1:][torch.arange(count) % (width - 1)]


def _find_token_before(
    attention: torch.nn.Module, kv: int, head: int, shared: torch.Tensor, said: torch.Tensor, noted: torch.Tensor
) -> None:
    size = len(said)
    base = attention.config.rope_parameters["rope_theta"]
    query, key = attention.q_proj.weight[head * size :][:size], attention.k_proj.weight[kv * size :][:size]
    query.zero_()
    key.zero_()
    for pair in TURNING:
        turn = base ** (-pair / (size // 2))  # from one position to the next
        key[pair] = AT_POSITIONS * shared
        query[pair] = AT_POSITIONS * math.cos(turn) * shared
        query[pair + size // 2] = -AT_POSITIONS * math.sin(turn) * shared
    attention.v_proj.weight[kv * size :][:size] = said
    attention.o_proj.weight[:, head * size :][:, :size] = NOTED * noted.T


def _find_what_followed(
    attention: torch.nn.Module, kv: int, head: int, said: torch.Tensor, noted: torch.Tensor, found: torch.Tensor
) -> None:
    size = len(said)
    query, key = attention.q_proj.weight[head * size :][:size], attention.k_proj.weight[kv * size :][:size]
    query.zero_()
    key.zero_()
    for place, number in enumerate([*STILL, *(pair + size // 2 for pair in STILL)]):
        query[number] = COMPARED * said[place]
        key[number] = COMPARED * noted[place]
    attention.v_proj.weight[kv * size :][:size] = found
    attention.o_proj.weight[:, head * size :][:, :size] = REPEATED * found.T
