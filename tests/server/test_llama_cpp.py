"""llama-server's endpoints and the suffix of completions, asked as editors ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inflight.text import Tokenizer

from .conftest import SCRIPTED, Server
from .scripted import write_filler
from .test_tools import TOOLS

# As llama.vim sends it.
VIM_FIELDS = [
    "content",
    *(f"timings/prompt_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
    *(f"timings/predicted_{name}" for name in ("n", "ms", "per_token_ms", "per_second")),
    *("truncated", "tokens_cached"),
]
VIM: dict[str, Any] = {
    "model": "",
    "id_slot": 0,
    "input_prefix": "import os\n",
    "input_suffix": "\nreturn\n",
    "input_extra": [{"text": "a = 1\n", "time": [5, 7], "filename": "a.py"}],
    "prompt": "def gap",
    "n_predict": 128,
    "stop": [],
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": VIM_FIELDS,
}
MIDDLE = "first\nsecond"


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Tokenizer]]:
    """A model that fills gaps, and its tokenizer."""
    folder = write_filler(tmp_path_factory.mktemp("model") / "filler")
    running = Server(str(folder), "--served-model-name", "filler", program=[SCRIPTED]).ready()
    yield running, Tokenizer.load(folder)
    assert running.stop() == 0, "".join(running.log)


def pieces(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: ")]


def test_llama_vim_gets_what_it_asked_for_and_nothing_else(filler: tuple[Server, Tokenizer]) -> None:
    answer = filler[0].post("/infill", VIM)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert list(shown) == VIM_FIELDS
    assert (shown["content"], shown["truncated"]) == (MIDDLE, False)
    assert shown["timings/prompt_n"] > 0 and shown["timings/predicted_n"] > 0
    assert "X-Inflight-Ignored-Fields" not in answer.headers


def test_llama_vim_has_its_context_computed_ahead(filler: tuple[Server, Tokenizer]) -> None:
    ahead = {**VIM, "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "temperature": 0.0}
    ahead |= {"samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
    answer = filler[0].post("/infill", ahead)
    assert (answer.status_code, answer.json()) == (200, {})


def test_llama_vim_edits_by_instruction(server: Server) -> None:
    """It has the prompt computed while the user still writes, and reads deltas."""
    messages = [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "A block is"}]
    ahead = {"id_slot": 0, "messages": messages, "samplers": [], "n_predict": 0, "stream": False}
    answer = server.post("/v1/chat/completions", {**ahead, "cache_prompt": True, "response_fields": [""]})
    assert answer.status_code == 200, answer.text
    body = {"id_slot": 0, "messages": messages, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"]}
    answer = server.post("/v1/chat/completions", {**body, "stream": True, "cache_prompt": True})
    assert answer.status_code == 200, answer.text
    deltas = [
        frame["choices"][0]["delta"] for frame in pieces(answer.text.replace("data: [DONE]", "")) if frame["choices"]
    ]
    assert "".join(delta.get("content") or "" for delta in deltas)


def test_llama_vscode_gets_several_gaps_and_its_limits(filler: tuple[Server, Tokenizer]) -> None:
    """As its server client has it: n_cmpl answers, and the context by the model's own properties."""
    server, _ = filler
    body = {name: VIM[name] for name in ("id_slot", "input_prefix", "input_suffix", "prompt", "cache_prompt")}
    body |= {"input_extra": [{"text": "a = 1\n", "time": 5, "filename": "a.py"}], "n_predict": 128, "n_cmpl": 3}
    body |= {"top_k": 40, "top_p": 0.99, "stream": False, "samplers": VIM["samplers"], "n_indent": 4}
    body |= {"t_max_prompt_ms": 500, "t_max_predict_ms": 2500, "model": "filler"}
    assert [one["content"] for one in server.post("/infill", body).json()] == [MIDDLE] * 3
    ahead = {**body, "n_predict": 0, "samplers": [], "t_max_predict_ms": 1}
    ahead = {name: ahead[name] for name in ahead if name not in ("n_cmpl", "n_indent", "top_k", "top_p", "stream")}
    assert server.post("/infill", ahead).status_code == 200
    for path in ("/props", "/props?model=filler&autoload=false"):
        assert server.get(path).json()["default_generation_settings"]["n_ctx"] == 1024
    assert server.get("/health").json()["status"]
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == "filler"


def test_llama_vscode_counts_a_prompt_with_tools(scripted: Server) -> None:
    messages = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": "call the tool"}]
    asked = {"messages": messages, "tools": TOOLS, "tool_choice": "auto"}
    prompt = scripted.post("/apply-template", asked).json()["prompt"]
    counted = scripted.post("/tokenize", {"content": prompt, "add_special": False, "parse_special": True}).json()
    answer = scripted.post("/v1/chat/completions", {**asked, "stream": False, "max_tokens": 64}).json()
    assert len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_a_gap_ends_at_a_token_of_the_format(filler: tuple[Server, Tokenizer]) -> None:
    shown = filler[0].post("/infill", {**VIM, "response_fields": None, "return_tokens": True}).json()
    assert (shown["content"], shown["stop"], shown["stop_type"], shown["has_new_line"]) == (MIDDLE, True, "eos", True)
    assert filler[1].decode(shown["tokens"]) == MIDDLE
    assert shown["tokens_predicted"] == len(shown["tokens"])
    assert shown["generation_settings"]["top_k"] == 40
    limited = filler[0].post("/infill", {**VIM, "response_fields": None, "n_predict": 1}).json()
    assert (limited["stop_type"], limited["tokens_predicted"]) == ("limit", 1)
    worded = filler[0].post("/infill", {**VIM, "response_fields": None, "stop": ["\n"]}).json()
    assert (worded["stop_type"], worded["stopping_word"], worded["content"]) == ("word", "\n", "first")


def test_a_stream_has_pieces_and_a_last_one_with_times(filler: tuple[Server, Tokenizer]) -> None:
    shown = pieces(filler[0].post("/infill", {**VIM, "stream": True, "response_fields": None}).text)
    assert "".join(one["content"] for one in shown) == MIDDLE
    assert [one["stop"] for one in shown] == [False] * (len(shown) - 1) + [True]
    assert shown[-1]["stop_type"] == "eos" and shown[-1]["timings"]["predicted_n"] == shown[-1]["tokens_predicted"]


def test_a_prompt_beyond_the_context_is_cut(filler: tuple[Server, Tokenizer]) -> None:
    long = {**VIM, "response_fields": None, "n_predict": 8}
    for more in (
        {"input_extra": [{"text": "word " * 400, "filename": f"{n}.py"} for n in range(8)]},
        {"input_prefix": "word " * 100_000, "input_suffix": " word" * 100_000},
    ):
        shown = filler[0].post("/infill", long | more).json()
        assert (shown["content"], shown["truncated"]) == (MIDDLE, True)
        assert shown["tokens_evaluated"] <= 1024 - 8


def test_a_suffix_of_completions_is_the_same_gap(filler: tuple[Server, Tokenizer]) -> None:
    server, tokenizer = filler
    body = {"model": "filler", "prompt": "import gap", "suffix": "\nreturn", "max_tokens": 64, "temperature": 0}
    [choice] = server.post("/v1/completions", body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (MIDDLE, "stop")
    [rendered] = server.post("/v1/completions/render", body).json()
    text = tokenizer.decode(rendered["token_ids"], skip_special_tokens=False)
    assert text == "<|fim_prefix|>import gap<|fim_suffix|>\nreturn<|fim_middle|>"
    streamed = server.client().completions.create(stream=True, **body)  # type: ignore[call-overload]
    assert "".join(one.choices[0].text for one in streamed) == MIDDLE
    two = server.post("/v1/completions", {**body, "prompt": ["gap", "gap"]}).json()["choices"]
    assert [one["text"] for one in two] == [MIDDLE, MIDDLE]
    plain = server.post("/v1/completions/render", {**body, "suffix": ""}).json()[0]
    assert tokenizer.decode(plain["token_ids"]) == "import gap"


def test_mistrals_form_of_it_answers_as_chat_does(filler: tuple[Server, Tokenizer]) -> None:
    body = {"model": "filler", "prompt": "import gap", "suffix": "\nreturn", "random_seed": 7, "temperature": 0}
    shown = filler[0].post("/v1/fim/completions", body).json()
    [choice] = shown["choices"]
    assert (shown["object"], choice["message"], choice["finish_reason"]) == (
        "chat.completion",
        {"role": "assistant", "content": MIDDLE},
        "stop",
    )
    *parts, done = filler[0].post("/v1/fim/completions", {**body, "stream": True}).text.strip().split("\n\n")
    deltas = [json.loads(one.removeprefix("data: "))["choices"][0] for one in parts]
    assert "".join(one["delta"]["content"] for one in deltas) == MIDDLE
    assert (deltas[-1]["finish_reason"], done) == ("stop", "data: [DONE]")


def test_a_client_that_writes_the_tokens_itself_gets_the_same(filler: tuple[Server, Tokenizer]) -> None:
    """Zed and Continue write a model's tokens into the prompt, and stop at those which the answer's text leaves out."""
    stops = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>"]
    prompt = "<|fim_prefix|>import gap<|fim_suffix|>\nreturn<|fim_middle|>"
    body = {"model": "filler", "prompt": prompt, "max_tokens": 64, "temperature": 0.2, "stop": stops}
    [choice] = filler[0].post("/v1/completions", body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (MIDDLE, "stop")
    [choice] = filler[0].post("/v1/completions", {**body, "stop": "<|nothing|>"}).json()["choices"]
    assert choice["text"] == MIDDLE + "unseen"
    [choice] = filler[0].post("/v1/completions", {**body, "skip_special_tokens": False}).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == (MIDDLE, "<|repo_name|>")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/infill", {"input_extra": [{}]}, "input_extra[0].text"),
        ("/infill", {"input_extra": [{"filename": 123, "text": "abc"}]}, "input_extra[0].filename"),
        ("/infill", {"input_prefix": 5}, "input_prefix"),
        ("/infill", {"mirostat": 2}, "mirostat"),
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": "x", "n_probs": 5}, "n_probs"),
        ("/completion", {"prompt": ""}, "prompt"),
        ("/completion", {"prompt": "word " * 3000}, "prompt"),
        ("/v1/completions", {"prompt": [5], "suffix": "x"}, "suffix"),
        ("/v1/completions", {"prompt": "x", "suffix": "x", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "word " * 3000, "suffix": "x"}, "prompt"),
        ("/apply-template", {"messages": []}, "messages"),
    ],
)
def test_a_mistake_names_its_field(
    filler: tuple[Server, Tokenizer], path: str, body: dict[str, Any], param: str
) -> None:
    answer = filler[0].post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_model_without_such_tokens_says_so(server: Server) -> None:
    for path, body, param in (
        ("/infill", VIM, "input_suffix"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ):
        error = server.post(path, body).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_task", param)
        assert "no fill-in-the-middle tokens" in error["message"]


def test_continue_asks_for_a_completion(server: Server) -> None:
    body = {"prompt": "A block is", "stream": True, "n_predict": 6, "mirostat": 0, "stop": [], "temperature": 0}
    shown = pieces(server.post("/completion", body).text)
    whole = server.post("/completion", {**body, "stream": False}).json()
    assert "".join(one["content"] for one in shown) == whole["content"] != ""
    assert whole["tokens_predicted"] == 6 and whole["stop_type"] == "limit"
    same = server.post("/v1/completions", {"prompt": "A block is", "max_tokens": 6, "temperature": 0}).json()
    assert whole["content"] == same["choices"][0]["text"]
    several = server.post("/completion", {**body, "stream": False, "n_cmpl": 2, "seed": -1}).json()
    assert [one["index"] for one in several] == [0, 1]


def test_texts_are_tokenized_by_llama_servers_names(server: Server) -> None:
    plain = server.post("/tokenize", {"prompt": "A block is", "add_special_tokens": False}).json()
    assert server.post("/tokenize", {"content": "A block is"}).json() == plain
    around = server.post("/tokenize", {"content": "A block is", "add_special": True}).json()
    assert around == server.post("/tokenize", {"prompt": "A block is"}).json()
    assert server.post("/detokenize", {"tokens": plain["tokens"]}).json()["content"] == "A block is"


def test_a_template_is_applied(filler: tuple[Server, Tokenizer]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert filler[0].post("/apply-template", {"messages": messages}).json() == {
        "prompt": "<|user|>\nHi<|end|>\n<|assistant|>"
    }
