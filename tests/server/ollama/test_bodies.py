"""Bodies of ollama's API: what the engine is asked for them, and what is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.prepared import Limits, PreparedAnswer, PreparedChat, PreparedCompletion
from inflight.server.errors import ApiError
from inflight.server.ollama.chat import CHAT_ENDPOINT
from inflight.server.ollama.schema import keep_alive_of, seconds_of
from inflight.server.preprocessing.worker import Preprocessor
from inflight.text import ChatTemplate, Tokenizer

BUILT_IN = Path(inflight.__file__).parent / "builtin_model"
TOKENIZER = Tokenizer.load(BUILT_IN)
USER = {"role": "user", "content": "What is a lane?"}


def preprocessor(**limits: Any) -> Preprocessor:
    encoder = PromptEncoder(TOKENIZER, ChatTemplate.load(BUILT_IN), 0)
    return Preprocessor(encoder, TOKENIZER, Limits(models=("m",), keeps_grammars=True, **limits))


def prepared(name: str, of: Preprocessor | None = None, **fields: Any) -> Any:
    return (of or preprocessor()).prepared(name, json.dumps({"model": "m", **fields}).encode())


def chat(of: Preprocessor | None = None, **fields: Any) -> PreparedChat:
    found = prepared("ollama_chat", of, **{"messages": [USER], **fields})
    assert isinstance(found, PreparedChat)
    return found


def text_of(found: PreparedChat | PreparedCompletion) -> str:
    return TOKENIZER.decode(list(found.prompts[0].ids()), skip_special_tokens=False)


def refusal(name: str, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        prepared(name, **fields)
    return refused.value


def test_a_conversation_is_the_one_of_chat_and_streams_unless_stream_is_false() -> None:
    found, of = chat(), preprocessor()
    same = of.prepared("chat", json.dumps({"messages": [USER]}).encode())
    assert isinstance(same, PreparedChat) and found.prompts == same.prompts
    assert found.settings.stream is True and chat(stream=False).settings.stream is False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 0, "top_k": 40.0, "top_p": 0.9, "min_p": 0.1}, {"temperature": 0, "top_k": 40, "top_p": 0.9}),
        ({"num_predict": 8.0, "seed": 7.0}, {"max_tokens": 8, "seed": 7}),
        ({"num_predict": -1, "seed": -1, "stop": []}, {"max_tokens": None, "seed": None, "stop": None}),
        ({"num_predict": -2, "top_k": -1}, {"max_tokens": None, "top_k": 0}),
        ({"top_p": 0, "stop": ["", "."]}, {"top_p": 1e-6, "stop": ["."]}),
        ({"repeat_penalty": 1.1, "presence_penalty": 0.5}, {"repetition_penalty": 1.1, "presence_penalty": 0.5}),
        ({"repeat_penalty": 1.1, "frequency_penalty": 1, "repeat_last_n": 0}, {"repetition_penalty": None}),
    ],
)
def test_options_by_the_engines_names(options: dict[str, Any], expected: dict[str, Any]) -> None:
    settings = chat(options=options).settings
    assert {name: getattr(settings, name) for name in expected} == expected


def test_options_of_loading_are_ignored_and_named() -> None:
    options = {"num_gpu": 99, "num_thread": 8, "mirostat": 0, "num_ctx": 4096, "use_mmap": None}
    found = chat(options=options, shift=True, keep_alive="5m", other=1)
    assert found.ignored == ("options.num_gpu", "options.num_thread", "options.mirostat", "other")


def test_formats() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    grammar = chat(format=schema).grammar
    assert grammar is not None and (grammar.kind, json.loads(grammar.source)) == ("json_schema", schema)
    assert (found := chat(format="json").grammar) is not None and found.kind == "json_object"
    assert chat(format="").grammar is None and chat(format=None).grammar is None
    raw = prepared("ollama_generate", prompt="x", raw=True, format=schema)
    assert isinstance(raw, PreparedCompletion) and raw.grammar == grammar


@pytest.mark.parametrize(
    ("name", "fields", "status", "said"),
    [
        ("ollama_chat", {"model": "other", "messages": [USER]}, 404, "The model 'other' does not exist"),
        ("ollama_chat", {"messages": [{**USER, "images": ["aGk="]}]}, 400, "messages[0].images is not supported"),
        ("ollama_chat", {"messages": [USER], "think": True}, 400, "'m' does not support thinking"),
        ("ollama_chat", {"messages": [USER], "think": "much"}, 400, "think is 'much'"),
        ("ollama_chat", {"messages": [USER], "keep_alive": "5 minutes"}, 400, "keep_alive is '5 minutes'"),
        ("ollama_chat", {"messages": [USER], "options": {"temperature": -1}}, 400, "options.temperature is -1"),
        ("ollama_chat", {"messages": [USER], "options": {"num_ctx": "8k"}}, 400, "options.num_ctx is '8k'"),
        ("ollama_chat", {"messages": [USER], "format": {"$ref": "http://x/y"}}, 400, "format refers to 'http://x/y'"),
        ("ollama_generate", {"prompt": "x", "images": ["aGk="]}, 400, "'images' is not supported"),
        ("ollama_generate", {"prompt": "x", "template": "{{ .Prompt }}"}, 400, "'template' is not supported"),
        ("ollama_generate", {"prompt": "x", "raw": True, "system": "y"}, 400, "raw is true"),
    ],
)
def test_refusals(name: str, fields: dict[str, Any], status: int, said: str) -> None:
    error = refusal(name, **fields)
    assert error.status == status and said in error.message


def test_a_model_without_its_prompt_is_loaded_or_unloaded() -> None:
    for name, fields in (("ollama_generate", {}), ("ollama_chat", {"messages": []})):
        for keep_alive, reason in ((None, "load"), (0, "unload"), ("0s", "unload"), ("5m", "load")):
            found = prepared(name, keep_alive=keep_alive, **fields)
            assert isinstance(found, PreparedAnswer)
            answer = json.loads(found.json)
            assert (answer["done"], answer["done_reason"], answer["model"]) == (True, reason, "m")
            assert "response" in answer if name == "ollama_generate" else answer["message"]["content"] == ""
        assert refusal(name, model="other", **fields).status == 404


def test_prompts_are_conversations_unless_they_are_raw() -> None:
    generated = prepared("ollama_generate", prompt=USER["content"], system="Be brief.")
    talked = chat(messages=[{"role": "system", "content": "Be brief."}, USER])
    assert isinstance(generated, PreparedChat) and generated.prompts == talked.prompts
    assert generated.kind == "ollama_generate"
    raw = prepared("ollama_generate", prompt="<|user|>\nWhat", raw=True, options={"num_predict": -1}, logprobs=True)
    assert isinstance(raw, PreparedCompletion) and raw.kind == "ollama_generate"
    assert text_of(raw).endswith("<|user|>\nWhat") and (raw.settings.max_tokens, raw.settings.logprobs) == (None, 0)


def test_a_context_comes_before_the_prompt() -> None:
    plain = prepared("ollama_generate", prompt="And then?")
    ids = TOKENIZER.encode("Once upon a time", add_special_tokens=False)
    found = prepared("ollama_generate", prompt="And then?", context=ids)
    assert found.prompts[0].ids() == (*ids, *plain.prompts[0].ids())
    room = plain.prompts[0].num_tokens + 3  # two tokens of the context, and one for the answer
    cut = prepared("ollama_generate", preprocessor(max_model_len=room), prompt="And then?", context=ids)
    assert cut.prompts[0].ids() == (*ids[-2:], *plain.prompts[0].ids())


def test_what_is_too_long_begins_at_a_later_message_of_the_user() -> None:
    system = {"role": "system", "content": "Be brief."}
    turns = [
        {"role": role, "content": f"{number} some words of it"} for number in range(6) for role in ("user", "assistant")
    ]
    messages = [system, *turns, USER]
    expected = chat(messages=[system, *turns[-4:], USER])
    room = expected.prompts[0].num_tokens + 1
    for of, options in ((preprocessor(max_model_len=room), {}), (preprocessor(), {"num_ctx": room})):
        found = chat(of, messages=messages, options=options)
        assert found.prompts == expected.prompts and json.loads(found.echoed) == {"dropped_messages": 8}
    for length, fields in ((room, {"truncate": False}), (8, {})):  # the last message stays, whatever its length
        with pytest.raises(ApiError, match=f"maximum context length is {length} tokens"):
            chat(preprocessor(max_model_len=length), messages=messages, **fields)


def test_calls_and_results_without_ids_get_some() -> None:
    from inflight.server.ollama.chat import _messages
    from inflight.server.ollama.schema import CHAT

    calls = [{"function": {"name": name, "arguments": {"city": "Lyon"}}} for name in ("weather", "time")]
    messages = [
        USER,
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_name": "time", "content": "noon"},
        {"role": "tool", "content": "24 degrees"},
        {"role": "tool", "content": "other", "tool_call_id": "mine"},
    ]
    body = CHAT.decode(json.dumps({"model": "m", "messages": messages}).encode())
    _, assistant, first, second, third = _messages(body.messages or ())
    ids = [one.id for one in assistant.tool_calls or ()]
    assert len(set(ids)) == 2 and all(one is not None and len(one) == 9 for one in ids)
    assert (first.tool_call_id, second.tool_call_id, third.tool_call_id) == (ids[1], ids[0], "mine")
    assert (first.name, assistant.reasoning_content) == ("time", "Hm.")


def test_the_answer_goes_on_with_the_assistants_last_words() -> None:
    messages = [USER, {"role": "assistant", "content": "A lane is"}]
    assert text_of(chat(messages=messages)).endswith("A lane is")


def test_durations() -> None:
    for given, seconds in ((5, 5), (0, 0), (-1, math.inf), ("5m", 300), ("1h30m", 5400), ("-1s", math.inf)):
        assert seconds_of(given) == seconds
    for given in ("", "5", "m", "5x", "1h 30m", "-"):
        with pytest.raises(ApiError):
            seconds_of(given)
    assert seconds_of("0") == 0 and seconds_of("1.5s") == 1.5 and seconds_of("10ms") == 0.01


def test_what_is_said_of_a_models_stay() -> None:
    read = CHAT_ENDPOINT.keep_alive
    assert read is not None and read(b'{"model": "m", "messages": []}') is None
    found = read(b'{"model": "m", "messages": [{}], "keep_alive": 0}')
    assert found is not None and (found.model, found.seconds, found.unloaded) == ("m", 0, b"")
    over = read(b'{"model": "m", "messages": [], "keep_alive": "0s"}')
    assert over is not None and json.loads(over.unloaded)["done_reason"] == "unload"
    assert keep_alive_of(b'{"model": "m", "keep_alive": "5m"}').seconds == 300  # type: ignore[union-attr]
    for body in (b'{"model": "m", "keep_alive": "x"}', b'{"keep_alive": 1}', b'{"keep_alive"', b'{"keep_alive": []}'):
        assert read(body) is None, "which reading the body reports"


def test_texts_are_cut_unless_they_are_not_to_be() -> None:
    assert json.loads(prepared("ollama_embed").json) == {"model": "m", "embeddings": []}
    assert json.loads(prepared("ollama_embed", input="").json)["embeddings"] == []
    assert json.loads(prepared("ollama_embeddings").json) == {"embedding": []}
    assert "no pooling head" in refusal("ollama_embed", input=["x"]).message
