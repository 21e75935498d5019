"""The shape of the built-in model, its loss on rows, and the folder it is written to.

What it knows: a small Llama and Hugging Face's files. What it does not know: where rows come from.
"""

import json
from pathlib import Path

import torch
from rows import Encoder, Row, batches_by_length
from tokens import CHAT_TEMPLATE, END, END_OF_TEXT, MAX_LENGTH, ROLES, VOCABULARY
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROPE_THETA = 10000.0


def new_model(encoder: Encoder) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rope_theta=ROPE_THETA,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=encoder.end,
        pad_token_id=encoder.end_of_text,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[encoder.end, encoder.end_of_text], pad_token_id=encoder.end_of_text
    )
    return model


def read(folder: Path) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer, LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.tie_weights()
    half.config.dtype = torch.bfloat16
    half.generation_config = model.generation_config
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The settings files are written so that versions before and after the fifth of transformers read them alike.
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = ROPE_THETA
    write_json(folder / "config.json", config)
    generation = json.loads((folder / "generation_config.json").read_text())
    write_json(folder / "generation_config.json", {"do_sample": False, **generation})
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_LENGTH,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "pad_token": END_OF_TEXT,
            "additional_special_tokens": list(ROLES.values()),
            "chat_template": CHAT_TEMPLATE,
        },
    )
    for name in ("chat_template.jinja", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def tensors(batch: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows, longest] and loss weights of the same shape, padded on the right with zeros."""
    longest = max(len(row.tokens) for row in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for i, row in enumerate(batch):
        tokens[i, : len(row.tokens)] = torch.tensor(row.tokens)
        weights[i, : len(row.tokens)] = torch.tensor(row.weights)
    return tokens, weights


def loss_of(model: LlamaForCausalLM, batch: list[Row], autocast: bool) -> torch.Tensor:
    tokens, weights = tensors(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        counted = weights[:, 1:] > 0  # the output layer runs only where the loss looks
        logits = model.lm_head(hidden[counted])
    losses = torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:][counted], reduction="none")
    weights = weights[:, 1:][counted]
    return (losses * weights).sum() / weights.sum()


@torch.inference_mode()
def answered_exactly(model: LlamaForCausalLM, rows: list[Row]) -> list[bool]:
    """For each row, whether greedy decoding gives its last answer token for token, the end included.

    It does exactly when at each position of the answer, given the right tokens before it, the most likely token is the
    right one; so one forward pass decides it.
    """
    exact: dict[int, bool] = {}
    for batch in batches_by_length(rows, 4096):
        tokens, weights = tensors(batch)
        choice = model(input_ids=tokens[:, :-1], use_cache=False).logits.argmax(-1)
        wrong = (choice != tokens[:, 1:]) & (weights[:, 1:] == 1.0)
        exact |= {id(row): not bad for row, bad in zip(batch, wrong.any(-1).tolist(), strict=True)}
    return [exact[id(row)] for row in rows]
