"""/tokenize and /detokenize, as vLLM has them: schema and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.conversation import ChatBody, Messages, Prompts
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import Name, TemplateVariables, TokenId
from inflight.server.common.prepared import PreparedAnswer, check_model
from inflight.server.common.tools import Tools, specs_of, template_tools
from inflight.server.errors import clients_fault, invalid
from inflight.text import Tokenizer
from inflight.text.in_parts import PART

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

MAX_TOKENIZED_CHARS = 1 << 20
MAX_TOKENS = 1 << 20  # of one answer
MAX_DETOKENIZED = 1 << 18

_encode = msgspec.json.Encoder().encode


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Either a prompt, or messages for the chat template, or llama-server's content: add_special has the tokens around
    it."""

    model: Name | None = None
    content: Annotated[str, Meta(max_length=MAX_TOKENIZED_CHARS)] | None = None
    add_special: bool | None = None
    prompt: Annotated[str, Meta(max_length=MAX_TOKENIZED_CHARS)] | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    model: Name | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_DETOKENIZED)]


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct, kw_only=True):
    """content: the same, by llama-server's name."""

    prompt: str
    content: str


def prepare_tokenize(preprocessor: Preprocessor, body: TokenizeBody, history: bytes | memoryview) -> PreparedAnswer:
    """Return the tokens of a prompt or of messages. Raises ApiError."""
    check_model(body.model, preprocessor.limits.models)
    if body.content is not None and body.prompt is None:
        body.prompt, body.add_special_tokens = body.content, bool(body.add_special)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Give either a prompt or messages.", "prompt")
    prompts = preprocessor.prompts
    answer = _Tokens(prompts.tokenizer, bool(body.return_token_strs))
    if body.messages is not None:
        chat = ChatBody(
            messages=body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        rendered = prompts.rendered(chat, template_tools(specs_of(body.tools)))
        answer.add(prompts.of_rendered(rendered, bool(body.add_special_tokens)), "messages")
    else:
        for part in _in_parts(prompts, body.prompt or "", body.add_special_tokens is not False):
            answer.add(part, "prompt")
    return PreparedAnswer(answer.json(preprocessor.limits.max_model_len or 0))


def prepare_detokenize(preprocessor: Preprocessor, body: DetokenizeBody, history: bytes | memoryview) -> PreparedAnswer:
    """Return the text of tokens. Raises ApiError."""
    check_model(body.model, preprocessor.limits.models)
    tokenizer = preprocessor.prompts.tokenizer
    text = clients_fault(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), "tokens")
    return PreparedAnswer(_encode(Detokenized(prompt=text, content=text)))


def _in_parts(prompts: Prompts, text: str, added: bool) -> Iterator[Sequence[int]]:
    """Yield the tokens of a text, part by part where it is long. added: with what the model expects around it."""
    if len(text) <= PART:
        yield clients_fault(lambda: prompts.tokenizer.encode(text, add_special_tokens=added), "prompt")
        return
    before, after = prompts.around() if added else ((), ())
    yield before
    parts = prompts.tokenizer.encode_in_parts(text)
    while (part := clients_fault(lambda: next(parts, None), "prompt")) is not None:
        yield part
    yield after


class _Tokens:
    """The answer, encoded part by part: tokens of a long text would take much memory as objects."""

    def __init__(self, tokenizer: Tokenizer, shows_texts: bool):
        """shows_texts: the answer has each token's text beside its id."""
        self._tokenizer, self._shows_texts = tokenizer, shows_texts
        self._count = 0
        self._tokens, self._texts = bytearray(), bytearray()

    def add(self, tokens: Sequence[int], field: str) -> None:
        """Append tokens. field: that they are from. Raises ApiError where there are too many."""
        if not tokens:
            return
        self._count += len(tokens)
        if self._count > MAX_TOKENS:
            raise invalid(
                f"{field} has more than {MAX_TOKENS:,} tokens, the most of one answer; send it in parts.",
                field,
                "body_too_complex",
            )
        _append(self._tokens, _encode(tokens))
        if self._shows_texts:
            _append(self._texts, _encode([self._tokenizer.id_to_token(one) or "" for one in tokens]))

    def json(self, max_model_len: int) -> bytes:
        """Return the whole answer."""
        answer = {"count": self._count, "max_model_len": max_model_len, "tokens": Raw(b"[%b]" % bytes(self._tokens))}
        if self._shows_texts:
            answer["token_strs"] = Raw(b"[%b]" % bytes(self._texts))
        return _encode(answer)


def _append(entries: bytearray, more: bytes) -> None:
    """more: a list in JSON, with at least one entry."""
    if entries:
        entries += b","
    entries += more[1:-1]


TOKENIZE_ENDPOINTS = (
    Endpoint(
        name="tokenize",
        path="/tokenize",
        body=BodyDecoder(TokenizeBody),
        prepare=prepare_tokenize,
        result=Tokenized,
        operation="tokenize",
        about="A prompt's token ids, or those of what the chat template makes of messages.",
    ),
    Endpoint(
        name="detokenize",
        path="/detokenize",
        body=BodyDecoder(DetokenizeBody),
        prepare=prepare_detokenize,
        result=Detokenized,
        operation="detokenize",
        about="The text of token ids.",
    ),
)
