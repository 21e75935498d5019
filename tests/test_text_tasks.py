"""Vectors, scores and classes by the Python API: what folders say, what is asked, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import save_file
from text_models import CLASSES, CONFIG, write_classifier, write_embedder, write_reranker

from inflight import LLM, SamplingParams
from inflight.build.model import BUILT_IN
from inflight.config.setting import SettingsError
from inflight.core.types.request import RequestRefused
from inflight.frontend.text_tasks import TextTaskError
from inflight.models.errors import ModelError
from inflight.models.registry import read_folder
from inflight.text import Tokenizer

TEXTS = ["The batch waits.", "A queue of requests, served in turn.", "x"]
PROMPTS = {"query": "question: ", "document": "text: "}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedder(tmp_path_factory.mktemp("embedder"), prompts=PROMPTS)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier(tmp_path_factory.mktemp("classifier"))


def opened(folder: Path, **settings: object) -> LLM:
    return LLM(str(folder), dtype="float32", **settings)


def vectors(llm: LLM, texts: list[str], **asked: object) -> np.ndarray:
    return np.array([one.outputs.embedding for one in llm.embed(texts, **asked)])  # type: ignore[arg-type]


def test_vectors_are_as_the_folder_says(embedder: Path) -> None:
    with opened(embedder) as llm:
        assert llm.capacity.max_model_len == 96 and not llm.capacity.generates
        found = vectors(llm, TEXTS)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
        raw = vectors(llm, TEXTS, normalize=False)
        np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), found, rtol=1e-5, atol=1e-7)
        short = vectors(llm, TEXTS, dimensions=16)
        np.testing.assert_allclose(short, raw[:, :16] / np.linalg.norm(raw[:, :16], axis=1, keepdims=True), rtol=1e-5)
        ids = Tokenizer.load(embedder).encode(TEXTS[0])
        assert llm.embed({"prompt_token_ids": ids})[0].outputs.embedding == found[0].tolist()


def test_prompts_stand_before_texts(embedder: Path) -> None:
    with opened(embedder) as llm:
        (named,), (written,) = vectors(llm, ["why?"], prompt_name="query"), vectors(llm, ["question: why?"])
        assert named.tolist() == written.tolist() != vectors(llm, ["why?"])[0].tolist()
        with pytest.raises(TextTaskError, match="'answer', but this model's prompts are: query, document"):
            llm.embed("why?", prompt_name="answer")


def test_long_texts_are_cut_where_that_is_asked(embedder: Path) -> None:
    long = "word " * 200
    with opened(embedder) as llm:
        with pytest.raises(RequestRefused, match="maximum context length is 96 tokens"):
            llm.embed(long)
        (one,) = llm.embed(long, truncate=True)
        assert len(one.prompt_token_ids) == 96
        tokenizer = Tokenizer.load(embedder)
        assert one.prompt_token_ids == [*tokenizer.encode(long)[:95], tokenizer.encode("")[-1]]


def test_pairs_by_cosine(embedder: Path) -> None:
    with opened(embedder) as llm:
        query, *others = vectors(llm, TEXTS)
        scores = [one.outputs.score for one in llm.score(TEXTS[0], TEXTS[1:])]
        np.testing.assert_allclose(scores, [query @ one for one in others], rtol=1e-5)
        one_by_one = [one.outputs.score for one in llm.score(TEXTS, TEXTS)]
        np.testing.assert_allclose(one_by_one, 1, rtol=1e-5)


def test_pairs_that_are_read_together(reranker: Path) -> None:
    with opened(reranker) as llm:
        scores = [one.outputs.score for one in llm.score(TEXTS[0], TEXTS[1:])]
        turned = [one.outputs.score for one in llm.score(TEXTS[1:], [TEXTS[0]] * 2)]
        assert all(0 < one < 1 for one in scores) and scores != turned
        (long,) = llm.score("question", "word " * 200, truncate=True)
        assert len(long.prompt_token_ids) == 128
        begin, *question, end = Tokenizer.load(reranker).encode("question")
        assert long.prompt_token_ids[: len(question) + 2] == [begin, *question, end]


def test_classes(classifier: Path) -> None:
    with opened(classifier) as llm:
        for one in llm.classify(TEXTS):
            assert math.isclose(sum(one.outputs.probs), 1, rel_tol=1e-5) and len(one.outputs.probs) == 3
            assert one.outputs.label == CLASSES[str(int(np.argmax(one.outputs.probs)))]


def test_what_a_model_does_not_do_is_refused(embedder: Path, reranker: Path, classifier: Path, tiny: Path) -> None:
    with opened(embedder) as llm:
        with pytest.raises(RequestRefused, match="generates no text"):
            llm.generate("hello", SamplingParams(max_tokens=3))
        with pytest.raises(TextTaskError, match="0 labels"):
            llm.classify("hello")
    with opened(classifier) as llm:
        with pytest.raises(TextTaskError, match="3 labels of a text, and no vector"):
            llm.embed("hello")
        with pytest.raises(TextTaskError, match="pairs are scored by models with one"):
            llm.score("a", "b")
    with opened(reranker) as llm, pytest.raises(TextTaskError, match="1 label of a text, and no vector"):
        llm.embed("hello")
    with LLM(str(tiny)) as llm, pytest.raises(TextTaskError, match="set --pooling"):
        llm.embed("hello")


def test_a_model_that_continues_texts_may_make_vectors_too(tiny: Path) -> None:
    with opened(tiny, pooling="last") as llm:
        (vector,) = vectors(llm, ["hello there"])
        assert len(vector) == 64 and np.linalg.norm(vector) == pytest.approx(1)
        assert len(llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3
    with opened(tiny, pooling="mean", max_num_batched_tokens=8, max_num_seqs=4) as llm:
        assert llm.capacity.encoder_only and vectors(llm, ["a text of more than eight tokens " * 3]).shape == (1, 64)
        with pytest.raises(RequestRefused, match="generates no text"):
            llm.generate("hello", SamplingParams(max_tokens=3))


@pytest.mark.parametrize("strategy", ["static", "dynamic", "continuous", "chunked", "adaptive", "slack"])
def test_every_strategy_answers_the_same(embedder: Path, strategy: str) -> None:
    texts = [f"{'word ' * (number % 17)}number {number}" for number in range(40)]
    with opened(embedder) as llm:
        wanted = vectors(llm, texts)
    with opened(embedder, strategy=strategy) as llm:
        np.testing.assert_array_equal(vectors(llm, texts), wanted)


def test_a_dense_module_lies_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "dense")
    with opened(folder) as llm:
        before = vectors(llm, TEXTS, normalize=False)
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense").mkdir()
    config = {"in_features": 64, "out_features": 24, "bias": True}
    config["activation_function"] = "torch.nn.modules.activation.Tanh"
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    chance = np.random.default_rng(1)
    weight, bias = chance.normal(0, 0.2, (24, 64)).astype(np.float32), chance.normal(0, 0.2, 24).astype(np.float32)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    with opened(folder) as llm:
        np.testing.assert_allclose(
            vectors(llm, TEXTS, normalize=False), np.tanh(before @ weight.T + bias), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.WordWeights", "path": ""}], "WordWeights"),
        ("modules.json", [{"type": "a.Transformer", "path": "../elsewhere"}], "must list modules"),
        ("modules.json", {"a": 1}, "where a list is expected"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "one of them"),
        ("config_sentence_transformers.json", {"prompts": {"query": 7}}, "must name prompts"),
        ("config.json", {**CONFIG, "position_embedding_type": "relative_key"}, "absolute positions alone"),
        ("config.json", {**CONFIG, "is_decoder": True}, "is_decoder"),
    ],
)
def test_folders_that_say_something_else(tmp_path: Path, file: str, content: object, match: str) -> None:
    folder = write_embedder(tmp_path / "embedder")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match=match):
        opened(folder)


def test_labels_are_read_in_their_order(classifier: Path) -> None:
    pooler = read_folder(classifier, to_run=True).pooler
    assert pooler is not None and pooler.labels == ("calm", "busy", "full") and pooler.activation == "softmax"


PAIR = (
    "{% for one in messages %}{% if one.role == 'query' %}Q: {{ one.content }}{% else %} D: {{ one.content }}"
    "{% endif %}{% endfor %} A:"
)


@pytest.fixture(scope="module")
def pair_template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("template") / "pair.jinja"
    path.write_text(PAIR)
    return str(path)


HEADS: dict[str, tuple[str, dict[str, object]]] = {
    "tied": ("qwen3", {}),
    "of its own": ("mistral", {}),
    "scaled": ("granite", {"logits_scaling": 3.0}),
    "with a bias": (
        "granite",
        {"architectures": ["PhiForCausalLM"], "residual_multiplier": 1, "attention_multiplier": 1},
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_score_is_what_the_next_token_is_more_likely_to_be(head: str, pair_template: str, tmp_path: Path) -> None:
    """Against the same model as it continues texts."""
    family, fields = HEADS[head]
    model, answers, documents = (
        str(write_model(tmp_path, family, **fields)),
        ("a", "b"),
        ["One.", "None <|end|> at all."],
    )
    with LLM(model, dtype="float32", score_tokens=answers, score_template=pair_template) as llm:
        assert not llm.capacity.generates and llm.settings["score_tokens"].value == "a b"
        found = llm.score("Who waits?", documents)
        with pytest.raises(RequestRefused, match="generates no text"):
            llm.generate("Who waits?")
    tokenizer = Tokenizer.load(tmp_path)
    with LLM(model, dtype="float32") as llm:
        for one, document in zip(found, documents, strict=True):
            prompt = one.prompt_token_ids
            assert tokenizer.decode(prompt) == f"Q: Who waits? D: {document} A:"
            asked = [{"prompt_token_ids": [*prompt, *tokenizer.encode(answer)]} for answer in answers]
            result = llm.generate(asked, SamplingParams(max_tokens=1, prompt_logprobs=1))
            likely = [one.prompt_logprobs[-1][one.prompt_token_ids[-1]].logprob for one in result]
            assert one.outputs.score == pytest.approx(1 / (1 + math.exp(likely[1] - likely[0])), rel=1e-4)
            assert one.outputs.score != pytest.approx(0.5, rel=1e-3)


def test_of_a_templated_pair_the_document_is_cut(pair_template: str) -> None:
    with LLM(score_tokens=("a", "b"), score_template=pair_template, max_model_len=64) as llm:
        (one,) = llm.score("Who waits?", ["word " * 200], truncate=True)
        text = Tokenizer.load(BUILT_IN).decode(one.prompt_token_ids)
        assert len(one.prompt_token_ids) <= 64 and text.startswith("Q: Who waits? D: word") and text.endswith(" A:")
        with pytest.raises(ValueError, match="The template of pairs and the query alone have"):
            llm.score("word " * 200, ["x"], truncate=True)


def test_scores_by_the_next_token_that_cannot_be(pair_template: str, embedder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'a sentence of words', which is \d+ tokens of this model"):
        LLM(score_tokens=("a sentence of words", "b"))
    with pytest.raises(SettingsError, match="two different answers"):
        LLM(score_tokens=("a", "a"))
    with pytest.raises(SettingsError, match="two different answers"):
        LLM(score_tokens="no")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="--pooling is last; leave one of them out"):
        LLM(score_tokens=("a", "b"), pooling="last")
    with pytest.raises(SettingsError, match="has no score for them; set --score-tokens"):
        LLM(str(embedder), score_template=pair_template)
    with pytest.raises(SettingsError, match="absent cannot be read"):
        LLM(score_tokens=("a", "b"), score_template=str(tmp_path / "absent"))
    with pytest.raises(ModelError, match="the model continues no texts"):
        LLM(str(embedder), score_tokens=("a", "b"))
    with pytest.raises(ModelError, match="caps its logits at 30, so that the difference"):
        LLM(str(write_model(tmp_path / "capped", "gemma2")), score_tokens=("a", "b"))
