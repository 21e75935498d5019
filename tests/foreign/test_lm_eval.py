"""lm-eval's models that ask a server: log-likelihoods by `echo`, answers to be matched, through its command line.

The tasks are made here, so that the answers are known: what the server itself would say is right, nonsense is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server.conftest import Server

import inflight

from .cases import KEY, MODEL, plain_chat, plain_completion
from .environments import Environment
from .tap import Tap

pytestmark = pytest.mark.foreign
CLIENT = "lm_eval"
TOKENIZER = Path(inflight.__file__).parent / "builtin_model"
PROMPTS = ["A block is", "A lane is", "Continuous batching decides", "The scheduler", "A prefix", "Preemption"]
NONSENSE = " umbrella umbrella zebra"
STOP = "."

CHOICE = """
task: foreign_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
target_delimiter: ""
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""
ANSWER = """
task: foreign_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], do_sample: false, temperature: 0.0, max_gen_toks: 24}}
metric_list: [{{metric: exact_match}}]
"""
ROLLING = """
task: foreign_rolling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{prompt}}}}{{{{choices[0]}}}}"
metric_list: [{{metric: word_perplexity}}]
"""

Evaluate = Callable[..., dict[str, Any]]


def documents(server: Server, chat: bool) -> list[dict[str, Any]]:
    found = []
    for prompt in PROMPTS:
        if chat:
            said = plain_chat(server, [{"role": "user", "content": prompt}], max_tokens=24, stop=STOP)
        else:
            said = plain_completion(server, prompt, max_tokens=24, stop=STOP)
        found.append({"prompt": prompt, "choices": [said, NONSENSE], "answer": said})
    return found


@pytest.fixture
def evaluate(environment: Environment, tap: Tap, foreign_server: Server, tmp_path: Path) -> Evaluate:
    """Results by task, of `lm-eval run` with a kind of model."""

    def run(kind: str, tasks: str, *options: str, **settings: Any) -> dict[str, Any]:
        chat = "chat" in kind
        data = tmp_path / "documents.json"
        data.write_text(json.dumps(documents(foreign_server, chat)), encoding="utf-8")
        for name, text in (("choice", CHOICE), ("answer", ANSWER), ("rolling", ROLLING)):
            (tmp_path / f"{name}.yaml").write_text(text.format(file=data), encoding="utf-8")
        result = {
            "model": MODEL,
            "base_url": f"{tap.url}/v1/{'chat/' if chat else ''}completions",
            "max_length": 1024,
            "max_retries": 1,
            **settings,
        }
        given = ",".join(f"{name}={value}" for name, value in result.items())
        where = ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "results.json"), "--log_samples"]
        asked = ["--model", kind, "--model_args", given, "--tasks", tasks, *where, *options]
        environment.run("lm-eval", "run", *asked, OPENAI_API_KEY=KEY)
        found = next(tmp_path.glob("results*.json"))
        results: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))["results"]
        return results

    return run


def test_completions_with_the_models_own_tokenizer(evaluate: Evaluate, tap: Tap) -> None:
    """Prompts go as token ids, several in a call."""
    results = evaluate(
        "local-completions",
        "foreign_choice,foreign_answer,foreign_rolling",
        *("--batch_size", "3"),
        tokenizer=TOKENIZER,
        tokenizer_backend="huggingface",
    )
    assert results["foreign_choice"]["acc,none"] == 1.0
    assert results["foreign_answer"]["exact_match,none"] == 1.0
    assert 1 < results["foreign_rolling"]["word_perplexity,none"] < 1e6
    assert all(isinstance(body["prompt"][0], list) for body in tap.bodies("/v1/completions"))


def test_completions_at_once_as_text(evaluate: Evaluate) -> None:
    results = evaluate(
        "local-completions",
        "foreign_choice,foreign_answer",
        tokenizer=TOKENIZER,
        tokenizer_backend="huggingface",
        tokenized_requests=False,
        num_concurrent=4,
    )
    assert results["foreign_choice"]["acc,none"] == 1.0
    assert results["foreign_answer"]["exact_match,none"] == 1.0


def test_completions_with_the_servers_tokenizer(evaluate: Evaluate, tap: Tap) -> None:
    """Which the client prefers where a server has it: no tokenizer is needed beside it."""
    results = evaluate("local-completions", "foreign_choice,foreign_answer", auth_token=KEY)
    assert results["foreign_choice"]["acc,none"] == 1.0
    assert results["foreign_answer"]["exact_match,none"] == 1.0
    assert tap.bodies("/tokenize")


def test_chat(evaluate: Evaluate) -> None:
    results = evaluate(
        "local-chat-completions", "foreign_answer", "--apply_chat_template", num_concurrent=2, tokenizer_backend="None"
    )
    assert results["foreign_answer"]["exact_match,none"] == 1.0
