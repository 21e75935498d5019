"""Check and copy chat messages in the form that a template takes, and let a template's text end in the last message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from inflight.counted import quoted
from inflight.text.errors import ChatTemplateError

CONTINUATION_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # as transformers does: the space shows whether the template trims


class ContentForm(NamedTuple):
    """Content of messages as a template reads it.

    Attributes:
        loops_over_parts: It takes a list of parts.
        asks_for_strings: It also tests whether the content is a string.
    """

    loops_over_parts: bool
    asks_for_strings: bool


def checked_messages(messages: object, form: ContentForm) -> list[dict[str, Any]]:
    """Copy the messages, each checked, with content in the form the template takes."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ChatTemplateError(f"messages must be a list of messages, not a {type(messages).__name__}.")
    if not messages:
        raise ChatTemplateError("messages is empty (0 messages); send at least one.")
    return [_checked_message(message, f"messages[{index}]", form) for index, message in enumerate(messages)]


def _checked_message(message: object, where: str, form: ContentForm) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"{where} must be an object with role and content, not a {type(message).__name__}.")
    # Clients send `"content": null`, which templates would write out as the word None.
    present = {key: plain(value, f"{where}.{key}") for key, value in message.items() if value is not None}
    if not isinstance(present.get("role"), str):
        raise ChatTemplateError(f'{where} has no role; give it one, such as "user", as a string.')
    if "content" in present:
        present["content"] = _content(present["content"], f"{where}.content", form)
    elif not present.get("tool_calls"):
        raise ChatTemplateError(f"{where} has no content; give it a string or a list of text parts.")
    return present


def _content(content: object, where: str, form: ContentForm) -> object:
    """Convert content to the template's form: parts joined to a string, a string as a part, or unchanged."""
    if isinstance(content, str):
        only_parts = form.loops_over_parts and not form.asks_for_strings
        return [{"type": "text", "text": content}] if only_parts else content
    if not isinstance(content, list):
        raise ChatTemplateError(f"{where} must be a string or a list of text parts, not a {type(content).__name__}.")
    texts = [_text(part, f"{where}[{index}]") for index, part in enumerate(content)]
    return content if form.loops_over_parts else "\n".join(texts)


def _text(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or "type" not in part:
        raise ChatTemplateError(f'{where} must be an object such as {{"type": "text", "text": "…"}}.')
    if part["type"] != "text":
        raise ChatTemplateError(
            f"{where} is of type {quoted(part['type'])}, but only text can be read; send text parts."
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where}.text must be a string, not a {type(text).__name__}.")
    return text


def final_text(messages: list[dict[str, Any]]) -> str:
    """Return the text to be continued: the last message's, or its last part's."""
    content = messages[-1].get("content")
    if isinstance(content, list) and content:
        content = content[-1]["text"]
    if not isinstance(content, str):
        raise ChatTemplateError(
            "continue_final_message is set, but the last message has no text to go on with; give it some content."
        )
    return content


def to_be_continued(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a tag at the end of the last one's text."""
    *before, last = messages
    text = final_text(messages) + CONTINUATION_TAG
    content = last["content"]
    return [
        *before,
        {**last, "content": text if isinstance(content, str) else [*content[:-1], {**content[-1], "text": text}]},
    ]


def cut_at_tag(final: str, rendered: str) -> str:
    """Cut a rendered conversation at the tag. As in transformers, spaces before it are cut if the template trims."""
    index = rendered.rfind(CONTINUATION_TAG.strip())
    if index < 0 or final.strip() not in rendered:
        raise ChatTemplateError(
            "continue_final_message is set, but the model's chat template leaves out or changes the end of the last "
            "message, so that there is nothing to go on with; leave it false."
        )
    text = rendered[:index]
    return text if rendered.startswith(CONTINUATION_TAG, index) else text.rstrip()


def plain(value: Any, where: str) -> Any:
    """Copy a value as plain JSON types: a template could call methods of other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str):  # an enum, or another kind of string
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise ChatTemplateError(f"{where} holds a {type(value).__name__}; send JSON values only.")
