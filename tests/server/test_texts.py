"""The endpoints of pooled texts, as clients ask them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from text_models import write_classifier, write_embedder, write_reranker

from inflight import LLM

from .conftest import Server

TEXTS = ["The batch waits.", "A queue of requests, served in turn.", "x"]
Make = Callable[[Path], Path]


def served(folder: Path, make: Make, *options: str) -> Iterator[Server]:
    server = Server("--model", str(make(folder)), "--dtype", "float32", *options)
    yield server.ready()
    server.process.terminate()
    server.process.wait(30)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("embedder"), lambda one: write_embedder(one, prompts={"query": "q: "}))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("reranker"), write_reranker)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from served(tmp_path_factory.mktemp("classifier"), write_classifier)


def vectors(server: Server, **body: object) -> np.ndarray:
    answer = server.post("/v1/embeddings", body)
    assert answer.status_code == 200, answer.text
    return np.array([one["embedding"] for one in answer.json()["data"]])


def test_embeddings_by_openais_client(embedder: Server) -> None:
    client = embedder.client()
    model = client.models.list().data[0].id
    plain = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model=model, input=TEXTS)  # the client asks for base64
    assert [one.index for one in plain.data] == [0, 1, 2] and plain.usage.prompt_tokens == plain.usage.total_tokens > 6
    for one, other in zip(plain.data, packed.data, strict=True):
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-5)
        np.testing.assert_array_equal(np.float32(one.embedding), np.float32(other.embedding))
    (alone,) = client.embeddings.create(model=model, input=TEXTS[1], encoding_format="float").data
    assert alone.embedding == plain.data[1].embedding
    pooled = embedder.post("/pooling", {"input": TEXTS}).json()["data"]
    assert [(one["object"], one["data"]) for one in pooled] == [("pooling", one.embedding) for one in plain.data]
    short = client.embeddings.create(model=model, input=TEXTS, dimensions=8, encoding_format="float")
    assert {len(one.embedding) for one in short.data} == {8}


def test_token_ids_and_prompts(embedder: Server) -> None:
    tokens = embedder.post("/tokenize", {"prompt": TEXTS[0]}).json()["tokens"]
    (by_text,) = vectors(embedder, input=TEXTS[0])
    for given in (tokens, [tokens]):
        assert vectors(embedder, input=given)[0].tolist() == by_text.tolist()
    assert (
        vectors(embedder, input="q: why", normalize=True).tolist()
        == vectors(embedder, input="why", prompt_name="query").tolist()
    )


def test_the_form_of_text_embeddings_inference(embedder: Server) -> None:
    found = embedder.post("/embed", {"inputs": TEXTS}).json()
    np.testing.assert_array_equal(found, vectors(embedder, input=TEXTS))
    raw = embedder.post("/embed", {"inputs": TEXTS[0], "normalize": False, "truncate": True}).json()
    assert np.linalg.norm(raw) != pytest.approx(1, abs=1e-3)
    ranked = embedder.post("/rerank", {"query": TEXTS[0], "texts": TEXTS, "return_text": True}).json()
    assert ranked[0]["index"] == 0 and ranked[0]["score"] == pytest.approx(1, abs=1e-5)
    assert [one["text"] for one in ranked] == [TEXTS[one["index"]] for one in ranked]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_reranking(reranker: Server, path: str) -> None:
    body = {"query": "who waits?", "documents": [*TEXTS[:2], {"text": TEXTS[2]}], "model": None, "top_k": None}
    answer = reranker.post(path, body).json()
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True) and all(0 < one < 1 for one in scores)
    assert {one["index"]: one["document"]["text"] for one in answer["results"]} == dict(enumerate(TEXTS))
    few = reranker.post(path, {**body, "top_n": 2, "return_documents": False}).json()["results"]
    assert few == [{"index": one["index"], "relevance_score": one["relevance_score"]} for one in answer["results"][:2]]
    scored = reranker.post("/v1/score", {"text_1": "who waits?", "text_2": TEXTS}).json()["data"]
    assert {one["index"]: one["score"] for one in scored} == {
        one["index"]: one["relevance_score"] for one in answer["results"]
    }
    raw = reranker.post("/score", {"queries": "who waits?", "documents": TEXTS, "activation": False}).json()["data"]
    np.testing.assert_allclose(1 / (1 + np.exp([-one["score"] for one in raw])), [one["score"] for one in scored], 1e-5)


def test_classes(classifier: Server) -> None:
    answer = classifier.post("/classify", {"input": TEXTS}).json()
    for one in answer["data"]:
        assert one["num_classes"] == 3 and sum(one["probs"]) == pytest.approx(1, abs=1e-5)
        assert one["label"] == ("calm", "busy", "full")[int(np.argmax(one["probs"]))]


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        ("/v1/embeddings", {"input": []}, None, "0 entries"),
        ("/v1/embeddings", {"input": ["a", [1]]}, None, "one kind only"),
        ("/v1/embeddings", {"input": ""}, None, None),  # what stands around a text is a text
        ("/v1/embeddings", {"input": "a", "dimensions": 65}, None, "65 dimensions are asked for"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "invalid_value", ">= 1"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "invalid_value", "int8"),
        ("/v1/embeddings", {"input": "a", "prompt_name": "other"}, "invalid_value", "prompts are: query"),
        ("/v1/embeddings", {"input": [9999]}, None, "vocabulary has 384"),
        ("/v1/embeddings", {"input": "word " * 99}, "context_length_exceeded", "set truncate"),
        ("/v1/embeddings", {"input": "word " * 99, "truncate": True}, None, None),
        ("/v1/embeddings", {"input": "word " * 99, "truncate_prompt_tokens": 3}, None, "4 or more"),
        ("/v1/embeddings", {"input": "a", "model": "another"}, "model_not_found", "another"),
        ("/v1/embeddings", {"input": "a", "temperature": 1}, None, None),  # ignored, as the header says
        ("/v1/embeddings", {"input": ["a"] * 2049}, None, "2,048"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None, "as many of both"),
        ("/score", {"text_1": "a"}, "missing_field", "text_2"),
        ("/v1/rerank", {"query": "a", "documents": []}, None, "0 entries"),
        ("/classify", {"input": "a"}, "unsupported_task", "0 labels"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            "unsupported_task",
            "generates no text",
        ),
        ("/v1/completions", {"prompt": "a"}, "unsupported_task", "/v1/embeddings"),
    ],
)
def test_bad_bodies_are_reported(embedder: Server, path: str, body: object, code: str | None, says: str | None) -> None:
    answer = embedder.post(path, body)
    if says is None:
        assert answer.status_code == 200, answer.text
        return
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 400), answer.text
    assert says in error["message"] and (code is None or error["code"] == code), error


def test_a_chat_model_makes_no_vectors_unless_it_is_to(server: Server, tiny: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="--pooling"):
        server.client().embeddings.create(model="built-in", input="a")
    both = Server("--model", str(tiny), "--pooling", "last").ready()
    try:
        assert vectors(both, input=["a", "b"]).shape == (2, 64)
        assert both.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
    finally:
        both.process.terminate()
        both.process.wait(30)


def test_models_say_what_they_do(embedder: Server, classifier: Server, server: Server) -> None:
    def abilities(of: Server) -> set[str]:
        listed = of.get("/v1/models").json()["data"][0]["capabilities"]
        return {name for name, can in listed.items() if can}

    assert abilities(embedder) == {"embeddings", "scores"} and abilities(classifier) == {"classes"}
    assert "chat" in abilities(server) and not {"embeddings", "scores", "classes"} & abilities(server)


def test_lines_of_batch_jobs(tmp_path: Path) -> None:
    server = Server("--model", str(write_embedder(tmp_path / "m")), "--data-dir", str(tmp_path / "data")).ready()
    try:
        client = server.client()
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": {"input": text}}
            for number, text in enumerate(TEXTS)
        ]
        file = client.files.create(file=("\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        job = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        assert server.settled(lambda: client.batches.retrieve(job.id).status == "completed", 60)
        found = client.batches.retrieve(job.id)
        assert found.output_file_id is not None
        answers = [json.loads(line) for line in client.files.content(found.output_file_id).text.splitlines()]
        bodies = {one["custom_id"]: one["response"]["body"] for one in answers}
        assert len(bodies["1"]["data"][0]["embedding"]) == 64
    finally:
        server.process.terminate()
        server.process.wait(30)


def test_pairs_by_a_template_and_the_next_token(tmp_path: Path) -> None:
    template = tmp_path / "pair.jinja"
    template.write_text("Q: {{ messages[0].content }} D: {{ messages[1].content }} A:")
    server = Server("--score-tokens", "a", "b", "--score-template", str(template)).ready()
    try:
        body = {"query": "Who waits?", "documents": ["The batch.", "No one <|end|> at all."]}
        ranked = server.post("/v1/rerank", body).json()["results"]
        with LLM(score_tokens=("a", "b"), score_template=str(template)) as llm:
            wanted = [one.outputs.score for one in llm.score(body["query"], body["documents"])]
        assert [one["relevance_score"] for one in sorted(ranked, key=lambda one: one["index"])] == wanted
        long = server.post("/v1/rerank", {**body, "query": "word " * 5000, "truncate": True})
        assert long.status_code == 400 and "The template of pairs and the query alone have" in long.text
    finally:
        server.process.terminate()
        server.process.wait(30)
