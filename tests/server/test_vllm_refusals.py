"""Cases of vLLM's own tests of its API in which a body is refused, and those of pooled texts; names are vLLM's."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from text_models import write_embedder, write_reranker

from .conftest import Server
from .test_texts import served
from .test_vllm_cases import CHAT, COMPLETION, MESSAGES, MODEL, RESPONSES, WEATHER, Json, chat, text

# -- refusals ----------------------------------------------------------------------------------------------------------

FORMAT = {"type": "json_schema", "json_schema": {"name": "x"}}
REFUSED: dict[str, tuple[str, Json, str]] = {
    "too_many_chat_logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "too_many_completion_logprobs": (COMPLETION, {"prompt": "A", "logprobs": 21}, "logprobs"),
    "prompt_logprobs_chat[-2]": (CHAT, {"messages": MESSAGES, "prompt_logprobs": -2}, "prompt_logprobs"),
    "structured_outputs_type_error": (
        CHAT,
        {"messages": MESSAGES, "structured_outputs": {"regex": {"1": "Python"}}},
        "structured_outputs.regex",
    ),
    "long_seed": (CHAT, {"messages": MESSAGES, "seed": 1 << 63}, "seed"),
    "long_seed[below]": (CHAT, {"messages": MESSAGES, "seed": -(1 << 63) - 1}, "seed"),
    "n_parameter_massive_value": (CHAT, {"messages": MESSAGES, "n": 100_000_000}, "n"),
    "chat_logit_bias_invalid": (CHAT, {"messages": MESSAGES, "logit_bias": {"99999999": 1}}, "logit_bias"),
    "json_schema_response_format_missing_schema": (
        CHAT,
        {"messages": MESSAGES, "response_format": FORMAT},
        "response_format",
    ),
    "json_schema_response_format_missing_schema[completion]": (
        COMPLETION,
        {"prompt": "A", "response_format": FORMAT},
        "response_format",
    ),
    "invalid_json_schema": (
        CHAT,
        {"messages": MESSAGES, "structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "no"}}}}},
        "structured_outputs",
    ),
    "invalid_regex": (CHAT, {"messages": MESSAGES, "structured_outputs": {"regex": "["}}, "structured_outputs"),
    "invalid_grammar": (
        CHAT,
        {"messages": MESSAGES, "structured_outputs": {"grammar": "root: ("}},
        "structured_outputs",
    ),
    "empty_grammar": (CHAT, {"messages": MESSAGES, "structured_outputs": {"grammar": ""}}, "structured_outputs"),
    "invalid_regex[completion]": (
        COMPLETION,
        {"prompt": "A", "structured_outputs": {"regex": "["}},
        "structured_outputs",
    ),
    "empty_prompt": (COMPLETION, {"prompt": ""}, "prompt"),
    "out_of_vocab_token_ids": (COMPLETION, {"prompt": [999_999]}, "prompt"),
    "negative_prompt_token_ids_flat": (COMPLETION, {"prompt": [-1, 2]}, "prompt"),
    "negative_prompt_token_ids_nested": (COMPLETION, {"prompt": [[1, -2]]}, "prompt"),
    "disable_prompt_embeds": (COMPLETION, {"prompt": "A", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    "inconsistent_tool_choice_and_tools": (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
    "inconsistent_tool_choice_and_tools[named]": (
        CHAT,
        {
            "messages": MESSAGES,
            "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "other"}},
        },
        "tool_choice",
    ),
    "inconsistent_tool_choice_and_tools[no name]": (
        CHAT,
        {"messages": MESSAGES, "tools": [WEATHER], "tool_choice": {"type": "function", "function": {}}},
        "tool_choice",
    ),
    "user_message_accepts_image": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        "messages[0]",
    ),
    "responses_request_required_without_tools": (RESPONSES, {"input": "Hi", "tool_choice": "required"}, "tool_choice"),
    "responses_request_named_tool_choice_without_tools": (
        RESPONSES,
        {"input": "Hi", "tool_choice": {"type": "function", "name": "f"}},
        "tool_choice",
    ),
    "responses_request_named_tool_choice_missing_name": (
        RESPONSES,
        {"input": "Hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function"}},
        "tool_choice",
    ),
    "seed_bounds_validation": (RESPONSES, {"input": "Hi", "seed": 1 << 63}, "seed"),
    "structured_outputs_and_json_schema_conflict": (
        RESPONSES,
        {
            "input": "Hi",
            "structured_outputs": {"choice": ["a"]},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        },
        "",
    ),
    "background": (RESPONSES, {"input": "Hi", "background": True}, "background"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused(server: Server, case: tuple[str, Json, str]) -> None:
    path, body, field = case
    for stream in (False, True):
        answer = server.post(
            path,
            {"model": MODEL, "max_tokens": 2, **body, "stream": stream}
            if path != RESPONSES
            else {"model": MODEL, **body, "stream": stream},
        )
        error = answer.json()["error"]
        assert answer.status_code == 400, answer.text
        assert (error["param"] or "").startswith(field), error
    assert len(text(chat(server))) > 0, "the server works afterwards"


# -- pooled texts ------------------------------------------------------------------------------------------------------

QUERIES = ["What is the capital of France?", "What is the capital of Germany?"]
DOCUMENTS = ["The capital of Brazil is Brasilia.", "The capital of France is Paris."]
LONG = "The batch waits. " * 60


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("embedder"), write_embedder)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("reranker"), write_reranker)


def answered(server: Server, path: str, status: int = 200, **body: Any) -> Json:
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("queries_str_1", "documents_str_1", 1),
        ("queries_str_1", "documents_str_n", 2),
        ("queries_str_n", "documents_str_n", 2),
        ("text_1", "text_2", 2),
    ],
)
def test_score_api(reranker: Server, embedder: Server, first: str, second: str, count: int) -> None:
    names = ("text_1", "text_2") if first == "text_1" else ("queries", "documents")
    left: Any = QUERIES if first.endswith("_n") else QUERIES[0]
    right: Any = DOCUMENTS[0] if second.endswith("str_1") else DOCUMENTS
    for server in (reranker, embedder):  # a cross-encoder and a bi-encoder
        answer = answered(server, "/score", **{names[0]: left, names[1]: right})
        assert answer["id"] and [one["index"] for one in answer["data"]] == list(range(count))
        assert all(isinstance(one["score"], float) for one in answer["data"])


def test_rerank_api(reranker: Server) -> None:
    """rerank_api_texts, rerank_api_top_n, rerank_api_max_model_len, score_api_max_model_len"""
    answer = answered(reranker, "/v1/rerank", query=QUERIES[0], documents=DOCUMENTS)
    scores = [one["relevance_score"] for one in answer["results"]]
    assert answer["id"] and scores == sorted(scores, reverse=True) and len(scores) == 2
    other_path = answered(reranker, "/rerank", 400, query=QUERIES[0], documents=DOCUMENTS)["error"]
    assert other_path["param"] == "documents" and "/v1/rerank" in other_path["message"]
    more = [*DOCUMENTS, "Cross-encoder models are neat"]
    assert len(answered(reranker, "/v1/rerank", query=QUERIES[0], documents=more, top_n=2)["results"]) == 2
    for path, body in (
        ("/v1/rerank", {"query": LONG, "documents": DOCUMENTS}),
        ("/score", {"queries": LONG, "documents": DOCUMENTS}),
    ):
        assert answered(reranker, path, 400, **body)["error"]["code"] == "context_length_exceeded"


def test_embed_online(embedder: Server) -> None:
    """completion_request, completion_request_batched, truncate_prompt_tokens, base64_embedding, matryoshka"""
    ids = answered(embedder, "/tokenize", prompt=QUERIES[0])["tokens"]
    by_text, by_ids = (answered(embedder, "/v1/embeddings", input=one) for one in (QUERIES[0], ids))
    assert by_text["data"][0]["embedding"] == by_ids["data"][0]["embedding"]
    assert by_text["usage"]["prompt_tokens"] == by_text["usage"]["total_tokens"] == len(ids)
    batch = answered(embedder, "/v1/embeddings", input=[QUERIES[0]] * 3)
    assert [one["index"] for one in batch["data"]] == [0, 1, 2] and batch["usage"]["prompt_tokens"] == 3 * len(ids)
    cut = answered(embedder, "/v1/embeddings", input=LONG, truncate_prompt_tokens=10)
    assert cut["usage"]["prompt_tokens"] == 10
    assert answered(embedder, "/v1/embeddings", 400, input=LONG)["error"]["code"] == "context_length_exceeded"
    packed = answered(embedder, "/v1/embeddings", input=QUERIES[0], encoding_format="base64")["data"][0]["embedding"]
    numbers = struct.unpack(f"<{len(by_text['data'][0]['embedding'])}f", base64.b64decode(packed))
    assert list(numbers) == pytest.approx(by_text["data"][0]["embedding"], abs=1e-6)
    short = answered(embedder, "/v1/embeddings", input=QUERIES[0], dimensions=8)["data"][0]["embedding"]
    assert len(short) == 8 and sum(one * one for one in short) == pytest.approx(1, abs=1e-5)
    for wrong in (-1, 0, 65):
        refused = answered(embedder, "/v1/embeddings", 400, input=QUERIES[0], dimensions=wrong)["error"]
        assert refused["param"] == "dimensions"
