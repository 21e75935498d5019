"""Attacks by one body: valid or not, as large as the server takes them."""

from __future__ import annotations

import json

from benchmarks.attack.kind import Attack, body
from benchmarks.attack.target import BOMBS, VOCABULARY
from benchmarks.attack.wire import MAX_BODY, filled, stretched, text

_COMPLETION, _CHAT = "/v1/completions", "/v1/chat/completions"
_LETTERS = "".join(chr(97 + (place * place + place // 7) % 26) for place in range(4096))


def _beside(fields: str) -> str:
    return '{"prompt":"x","max_tokens":1,' + fields


def _prompts() -> list[Attack]:
    pieces = {
        "prompt of -1": ("-1", "token ids below zero"),
        "prompt of []": ("[]", "empty lists as prompts"),
        "prompt of fractions": ("1.5", "numbers that are no token ids"),
        "prompt of texts": ('""', "millions of empty prompts"),
        "ids beyond the vocabulary": (str(VOCABULARY + 7), "token ids that the model lacks"),
        "ids of the vocabulary": ("7", "token ids, a thousand times the context"),
        "ids in lists of one": ("[7]", "millions of prompts of one token"),
    }
    return [
        body(name, f"8 MB: {what}", _COMPLETION, lambda piece=piece: filled('{"prompt":[', piece, "]}"))  # type: ignore[misc]
        for name, (piece, what) in pieces.items()
    ]


def _texts() -> list[Attack]:
    fillings = {
        "dense text": (_LETTERS, "letters that make a token each"),
        "spaces": (" ", "spaces"),
        "one word": ("a", "one letter"),
        "words": ("word and ", "plain words"),
        "emoji": ("\N{PILE OF POO}", "emoji"),
        "lone surrogates": ("\\ud800", "halves of characters"),
        "escapes": ("\\u0000", "escaped zeros"),
        "control tokens": ("<|end|>", "the text of control tokens"),
    }
    attacks = [
        body(name, f"a prompt of 8 MB: {what}", _COMPLETION, lambda one=one: stretched('{"prompt":"', one, '"}'))  # type: ignore[misc]
        for name, (one, what) in fillings.items()
    ]
    edge = text({"prompt": _LETTERS * 2, "max_tokens": 1})
    return [
        *attacks,
        body("text that hardly fits", "8 kB of letters, dense, from 32 at once", _COMPLETION, lambda: edge, "own", 32),
        body(
            "chat of one word",
            "a message of 8 MB",
            _CHAT,
            lambda: stretched('{"messages":[{"role":"user","content":"', _LETTERS, '"}]}'),
        ),
        body(
            "no UTF-8",
            "8 MB of bytes that are no text",
            _COMPLETION,
            lambda: b'{"prompt":"' + b"\xff" * MAX_BODY + b'"}',
        ),
    ]


def _messages() -> list[Attack]:
    def of(piece: str) -> bytes:
        return filled('{"messages":[', piece, "]}")

    part = '{"type":"text","text":""}'
    return [
        body("bad messages", "300,000 messages that are none", _CHAT, lambda: of('{"role":1}')),
        body("empty messages", "200,000 messages without text", _CHAT, lambda: of('{"role":"user","content":""}')),
        body(
            "parts of content",
            "300,000 parts of one message",
            _CHAT,
            lambda: filled('{"messages":[{"role":"user","content":[', part, "]}]}"),
        ),
        body(
            "most messages",
            "4,000 messages of 2 kB",
            _CHAT,
            lambda: text({"messages": [{"role": "user", "content": _LETTERS[:1900]}] * 4000}),
        ),
        body(
            "tool calls",
            "8 MB of a tool's arguments",
            _CHAT,
            lambda: filled('{"messages":[{"role":"assistant","tool_calls":[{"a":[', '{"b":1}', "]}]}]}"),
        ),
        body(
            "template variables",
            "8 MB for the chat template",
            _CHAT,
            lambda: filled(
                '{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":[', '{"b":[]}', "]}}"
            ),
        ),
    ]


def _shapes() -> list[Attack]:
    half = MAX_BODY // 2
    return [
        body("unclosed lists", "8 MB of [[],[], and no end", _COMPLETION, lambda: filled('{"prompt":[', "[]", "")),
        body("deep lists", "8 million lists in each other", _COMPLETION, lambda: b"[" * MAX_BODY),
        body(
            "deep objects",
            "a million objects in each other",
            _COMPLETION,
            lambda: stretched("", '{"a":', "1", MAX_BODY),
        ),
        body(
            "deep and closed",
            "4 million lists in each other, closed",
            _COMPLETION,
            lambda: b'{"prompt":' + b"[" * half + b"]" * half + b"}",
        ),
        body("unknown name", "an unknown field with a name of 8 MB", _COMPLETION, lambda: stretched('{"', "m", '":1}')),
        body(
            "unknown value",
            "an unknown field with 8 MB of numbers",
            _COMPLETION,
            lambda: filled(_beside('"unknown":['), "0", "]}"),
        ),
        body(
            "unknown fields",
            "hundreds of thousands of unknown fields",
            _COMPLETION,
            lambda: ("{" + ",".join(f'"f{n}":0' for n in range(600_000)) + "}").encode(),
        ),
        body("one field again", "n, a million times", _COMPLETION, lambda: filled(_beside(""), '"n":1', "}")),
        body(
            "long number", "a number of 8 million digits", _COMPLETION, lambda: stretched(_beside('"seed":'), "9", "}")
        ),
        body(
            "hint",
            "8 MB in a field that is passed over",
            _COMPLETION,
            lambda: filled(_beside('"metadata":['), "{}", "]}"),
        ),
        body("no JSON", "8 MB that are no JSON", _COMPLETION, lambda: b"\0" * MAX_BODY),
        body("only space", "8 MB of white space", _COMPLETION, lambda: b" " * MAX_BODY),
    ]


def _lists() -> list[Attack]:
    def of(field: str, piece: str) -> bytes:
        return filled(_beside(f'"{field}":['), piece, "]}")

    bias = json.dumps({f"{token % VOCABULARY:012d}{token}": 1 for token in range(250_000)})
    return [
        body(
            "many stops", "hundreds of thousands of stop strings", _COMPLETION, lambda: of("stop", '"stopstopstopstop"')
        ),
        body("one stop", "a stop string of 8 MB", _COMPLETION, lambda: stretched(_beside('"stop":"'), "s", '"}')),
        body("stop tokens", "millions of stop_token_ids", _COMPLETION, lambda: of("stop_token_ids", "5")),
        body("allowed tokens", "millions of allowed_token_ids", _COMPLETION, lambda: of("allowed_token_ids", "5")),
        body(
            "most allowed tokens",
            "a million allowed_token_ids, valid",
            _COMPLETION,
            lambda: filled(_beside('"allowed_token_ids":['), "5", "]}", 2 << 20),
        ),
        body("bad words", "millions of bad words", _COMPLETION, lambda: of("bad_words", '"b"')),
        body("biases", "250,000 biases", _COMPLETION, lambda: (_beside('"logit_bias":') + bias + "}").encode()),
    ]


def _tokenizing() -> list[Attack]:
    return [
        body("tokenize", "8 MB to cut", "/tokenize", lambda: stretched('{"prompt":"', _LETTERS, '"}')),
        body(
            "tokenize, within bounds",
            "a megabyte of dense letters to cut, with the tokens' texts",
            "/tokenize",
            lambda: text({"prompt": _LETTERS * 255, "return_token_strs": True}),
        ),
        body(
            "tokenize messages",
            "4,000 messages to render and cut",
            "/tokenize",
            lambda: text({"messages": [{"role": "user", "content": _LETTERS[:1900]}] * 4000}),
        ),
        body("detokenize", "4 million ids", "/detokenize", lambda: filled('{"tokens":[', "7", "]}")),
        body(
            "detokenize, within bounds",
            "260,000 ids",
            "/detokenize",
            lambda: text({"tokens": [token % VOCABULARY for token in range(260_000)]}),
        ),
    ]


def _templates() -> list[Attack]:
    return [
        body(
            f"template: {name}",
            f"a message that has the model's template {what}",
            _CHAT,
            lambda name=name: text({"messages": [{"role": "user", "content": f"bomb {name}"}], "max_tokens": 1}),  # type: ignore[misc]
        )
        for name, (what, _) in BOMBS.items()
    ]


def _unknown_fields() -> list[Attack]:
    def lists() -> bytes:
        return filled('{"prompt":[', "[]", "")

    return [
        body("no key", "8 MB of [[],[], without a key", _COMPLETION, lists, "none", 40),
        body("wrong key", "8 MB of [[],[], with an unknown key", _COMPLETION, lists, "wrong", 40),
        body("no key, /tokenize", "8 MB to cut, without a key", "/tokenize", lists, "none", 40),
        body("body for /health", "8 MB for a path without a body", "/health", lists, "none", 40),
        body("nowhere", "8 MB for a path that there is not", "/v1/nothing", lists, "own", 40),
        body("too large", "31 MB, announced", _COMPLETION, lambda: b"[" * (31 << 20), "own", 40),
    ]


def body_attacks() -> list[Attack]:

    return [
        *_prompts(),
        *_texts(),
        *_messages(),
        *_shapes(),
        *_lists(),
        *_tokenizing(),
        *_templates(),
        *_unknown_fields(),
    ]
