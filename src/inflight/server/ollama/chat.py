"""/api/chat and /api/generate: what the engine is asked for a body, and their entries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from inflight.frontend.parsers.registry import NONE
from inflight.server.common.conversation import ChatBody, Message
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import JsonObjectFormat, JsonSchemaFormat, JsonSchemaInside, ResponseFormat
from inflight.server.common.logprobs import encode
from inflight.server.common.prepared import (
    PreparedAnswer,
    PreparedChat,
    PreparedCompletion,
    Prompt,
    check_model,
    packed,
)
from inflight.server.common.tools import CalledTool
from inflight.server.errors import ApiError, invalid
from inflight.server.ollama.answers import ChatSerializer, GenerateSerializer, OllamaAnswer, empty_answer
from inflight.server.ollama.schema import (
    CHAT,
    GENERATE,
    ONLY_TEXT,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaOptions,
    keep_alive_of,
    seconds_of,
)
from inflight.server.openai.completions import CompletionBody
from inflight.server.openai.completions import prepare as prepare_completion

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

NDJSON = "application/x-ndjson"
FIELD_NAMES = {  # chat's → these endpoints'
    "response_format.json_schema.schema": "format",
    "response_format.json_schema": "format",
    "response_format": "format",
    "reasoning_effort": "think",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    **{
        name: f"options.{name}"
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "seed", "stop"),
            "presence_penalty",
            "frequency_penalty",
        )
    },
}
MIN_TOP_P = 1e-6  # what 0 means: the likeliest token


def prepare_chat(
    preprocessor: Preprocessor, body: OllamaChatBody, history: bytes | memoryview
) -> PreparedChat | PreparedAnswer:
    """Return the conversation's prompt, settings and tools. Raises ApiError."""
    if not body.messages:
        return _loaded(preprocessor, body, is_chat=True)
    chat = structs.replace(
        _chat(preprocessor, body, _messages(body.messages)),
        tools=body.tools or None,
        continue_final_message=_goes_on(body.messages[-1]) or None,
    )
    return _within_context(preprocessor, body, chat, "ollama_chat")


def prepare_generate(
    preprocessor: Preprocessor, body: OllamaGenerateBody, history: bytes | memoryview
) -> PreparedChat | PreparedCompletion | PreparedAnswer:
    """Return the prompt as a conversation's, or as it is. Raises ApiError."""
    if not (body.prompt or body.suffix):
        return _loaded(preprocessor, body, is_chat=False)
    if body.raw and (body.system or body.context):
        raise invalid("raw is true, so that system and context cannot be used; leave them out.", "raw")
    if body.raw or body.suffix or not preprocessor.prompts.encoder.can_chat:
        return _as_it_is(preprocessor, body)
    system = [Message(role="system", content=body.system)] if body.system else []
    chat = _chat(preprocessor, body, [*system, Message(role="user", content=body.prompt or "")])
    prepared = _within_context(preprocessor, body, chat, "ollama_generate")
    if not body.context:
        return prepared
    (prompt,) = prepared.prompts
    room = _context_of(preprocessor, body) - 1 - prompt.num_tokens
    context = body.context if body.truncate is False else body.context[max(0, len(body.context) - max(0, room)) :]
    return structs.replace(prepared, prompts=(Prompt(packed(context) + prompt.token_ids),))


# -- settings ----------------------------------------------------------------------------------------------------------


def _chat(preprocessor: Preprocessor, body: OllamaBody, messages: list[Message]) -> ChatBody:
    """Return a call as a body of /v1/chat/completions. Raises ApiError."""
    preprocessor.check_generates(body.model)
    if body.think and preprocessor.limits.parsers.reasoning in (None, NONE):
        raise invalid(f"{body.model!r} does not support thinking; leave think out.", "think", "unsupported_field")
    return ChatBody(
        messages=messages,
        enable_thinking=None if body.think is None else bool(body.think),
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs if body.logprobs else None,
        **_settings(body),
    )


def _as_it_is(preprocessor: Preprocessor, body: OllamaGenerateBody) -> PreparedCompletion:
    """Return a prompt that is continued without a template, or the texts around a gap. Raises ApiError."""
    completion = CompletionBody(
        prompt=body.prompt or "",
        suffix=body.suffix or None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        truncate_prompt_tokens=None if body.truncate is False else max(1, _context_of(preprocessor, body) - 1),
        **{"max_tokens": None, **_settings(body)},  # else 16, as OpenAI has it
    )
    return structs.replace(prepare_completion(preprocessor, completion, b""), kind="ollama_generate")


def _settings(body: OllamaBody) -> dict[str, Any]:
    """Return the fields that both of OpenAI's bodies have for a body's settings. Raises ApiError."""
    if body.keep_alive is not None:
        seconds_of(body.keep_alive)  # whose mistakes are reported; the rest is done where models are acquired
    settings = {"model": body.model, "stream": body.stream is not False, "response_format": _format(body)}
    return settings | _of_options(body.options or OllamaOptions())


def _format(body: OllamaBody) -> ResponseFormat | None:
    if isinstance(body.format, dict):
        return JsonSchemaFormat(JsonSchemaInside(schema_=body.format))
    return JsonObjectFormat() if body.format == "json" else None


def _of_options(options: OllamaOptions) -> dict[str, Any]:
    """Return options by the names of OpenAI's bodies."""
    predict, seed, top_k = options.num_predict, options.seed, options.top_k
    stops = [options.stop] if isinstance(options.stop, str) else options.stop or ()
    settings: dict[str, Any] = {
        "temperature": options.temperature,
        "top_k": None if top_k is None else max(0, int(top_k)),
        "top_p": None if options.top_p is None else max(MIN_TOP_P, options.top_p),
        "min_p": options.min_p,
        "seed": None if seed is None or seed == -1 else int(seed),
        "stop": [one for one in stops if one] or None,
    }
    if predict is not None:
        settings["max_tokens"] = int(predict) if predict >= 0 else None
    if options.repeat_last_n != 0:
        settings |= {
            "repetition_penalty": options.repeat_penalty,
            "presence_penalty": options.presence_penalty,
            "frequency_penalty": options.frequency_penalty,
        }
    return settings


# -- messages ----------------------------------------------------------------------------------------------------------


def _messages(given: Sequence[OllamaMessage]) -> list[Message]:
    """Return messages as chat has them. Calls and results that have no ids, as ollama's have none, get ids, since some
    templates want them: a result has that of the first call of its tool without one. Raises ApiError."""
    messages: list[Message] = []
    unanswered: list[CalledTool] = []
    for number, one in enumerate(given):
        if one.images:
            raise invalid(f"messages[{number}].images is not supported: {ONLY_TEXT}", f"messages[{number}].images")
        calls, call_id = one.tool_calls or [], one.tool_call_id
        if calls:
            calls = [
                call if call.id else structs.replace(call, id=f"call{number:03}{index % 100:02}")
                for index, call in enumerate(calls)
            ]
            unanswered = list(calls)
        if one.role == "tool":
            answered = next((call for call in unanswered if _is_answered(call, one)), None)
            if answered is not None:
                unanswered.remove(answered)
                call_id = call_id or answered.id
        messages.append(
            Message(
                role=one.role,
                content=one.content,
                name=one.tool_name,
                tool_calls=calls or None,
                tool_call_id=call_id,
                reasoning_content=one.thinking or None,
            )
        )
    return messages


def _is_answered(call: CalledTool, result: OllamaMessage) -> bool:
    """Return whether a result may be of this call."""
    if result.tool_call_id:
        return call.id == result.tool_call_id
    return not result.tool_name or call.function is None or call.function.name == result.tool_name


def _goes_on(last: OllamaMessage) -> bool:
    """Return whether the answer goes on with the assistant's last words."""
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


# -- the context -------------------------------------------------------------------------------------------------------


def _context_of(preprocessor: Preprocessor, body: OllamaBody) -> int:
    """Return the tokens that prompt and answer may have."""
    asked = None if body.options is None else body.options.num_ctx
    limits = [one for one in (preprocessor.limits.max_model_len, asked) if one is not None and one > 0]
    return int(min(limits, default=1 << 30))


def _within_context(preprocessor: Preprocessor, body: OllamaBody, chat: ChatBody, kind: str) -> PreparedChat:
    """Prepare a conversation; one that is too long begins at a later message of the user, behind those of the system.
    Raises ApiError."""
    most = _context_of(preprocessor, body) - 1  # one is left for the answer

    def prepared(begin: int) -> PreparedChat:
        left = [one for number, one in enumerate(chat.messages) if number >= begin or one.role == "system"]
        dropped = len(chat.messages) - len(left)
        echoed = encode({"dropped_messages": dropped}) if dropped else b""
        return preprocessor.chat(structs.replace(chat, messages=left), kind, echoed=echoed)

    def fitting(begin: int) -> PreparedChat | None:
        try:
            found = prepared(begin)
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            return None
        return found if found.prompts[0].num_tokens <= most else None

    begins = [0, *(number for number, one in enumerate(chat.messages) if number and one.role == "user")]
    if body.truncate is False or len(begins) == 1:  # what is still too long is the translator's to refuse
        return prepared(0)
    if (whole := fitting(0)) is not None:
        return whole
    first = bisect_left(begins, True, lo=1, hi=len(begins) - 1, key=lambda begin: fitting(begin) is not None)
    return prepared(begins[first])


def _loaded(preprocessor: Preprocessor, body: OllamaBody, is_chat: bool) -> PreparedAnswer:
    """Return the answer to a body that asks for the model alone, which is in memory by now. Raises ApiError."""
    check_model(body.model, preprocessor.limits.models)
    is_over = body.keep_alive is not None and seconds_of(body.keep_alive) == 0
    return PreparedAnswer(empty_answer(body.model, is_chat=is_chat, reason="unload" if is_over else "load"))


CHAT_ENDPOINT = Endpoint(
    name="ollama_chat",
    path="/api/chat",
    body=CHAT,
    prepare=prepare_chat,
    result=OllamaAnswer,
    serializer=ChatSerializer,
    stream_type=NDJSON,
    is_for_lines=False,
    keep_alive=partial(keep_alive_of, unloaded=partial(empty_answer, is_chat=True, reason="unload")),
    prompt_field="messages",
    call_prefix="ollama-",
    field_names=FIELD_NAMES,
    operation="ollama_chat",
    about="Answer a conversation. ollama's endpoint.",
)
GENERATE_ENDPOINT = replace(
    CHAT_ENDPOINT,
    name="ollama_generate",
    path="/api/generate",
    body=GENERATE,
    prepare=prepare_generate,
    serializer=GenerateSerializer,
    keep_alive=partial(keep_alive_of, unloaded=partial(empty_answer, is_chat=False, reason="unload")),
    prompt_field="prompt",
    operation="ollama_generate",
    about="Answer a prompt, or continue it as it is (raw). ollama's endpoint.",
)
