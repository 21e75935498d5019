"""Where tokens stand in the text that is returned: characters, not names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from text.builders import BUILDERS, CONFIGS, write_folder

import inflight
from inflight.core.types.sampling import TokenLogprob
from inflight.frontend.prompts import PromptEncoder, text_stream
from inflight.server.common.logprobs import TokenNames
from inflight.server.openai.completions import LogprobPieces
from inflight.text import Tokenizer

from .conftest import Server

TEXT = "héllo 🙂🙂 漢字"
BUILT_IN = Path(inflight.__file__).parent / "builtin_model"


@pytest.fixture(scope="module", params=["built-in", "byte_level", "llama2", "gemma"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "built-in":
        return Tokenizer.load(BUILT_IN)
    folder = tmp_path_factory.mktemp(request.param)
    return Tokenizer.load(write_folder(folder, BUILDERS[request.param](), CONFIGS[request.param]))


def scores(token_ids: tuple[int, ...]) -> list[TokenLogprob]:
    return [TokenLogprob(token_id, -1.0, ()) for token_id in token_ids]


def check(tokenizer: Tokenizer, token_ids: tuple[int, ...], text: str, offsets: list[int]) -> None:
    """All characters that end before a token's first byte are before it, and no other."""
    before = b""
    for token_id, offset in zip(token_ids, offsets, strict=True):
        assert offset == len(before.decode("utf-8", "ignore")), tokenizer.id_to_token(token_id)
        before += tokenizer.token_bytes(token_id)
    assert before.decode("utf-8") == text


def test_of_a_prompt_and_its_continuation(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, None, 0)
    params: Any = inflight.SamplingParams(skip_special_tokens=True)
    request = encoder.request("r", encoder.tokens(TEXT), params, 0.0)
    shown = LogprobPieces(TokenNames(tokenizer), request)
    prompt = shown.prompt(TEXT, scores(request.prompt_token_ids[1:]))
    hidden = [token_id in tokenizer.special_token_ids for token_id in request.prompt_token_ids]
    written = tuple(one for one, is_hidden in zip(request.prompt_token_ids, hidden, strict=True) if not is_hidden)
    offsets = [at for at, is_hidden in zip(prompt["text_offset"], hidden, strict=True) if not is_hidden]
    lead = len(b"".join(map(tokenizer.token_bytes, written)).decode()) - len(TEXT)  # a space that is not in the text
    check(tokenizer, written, " " * lead + TEXT, [0, *(at + lead for at in offsets[1:])])
    # The output continues where the prompt ends, piece by piece, special tokens in between left out.
    output = tuple(tokenizer.encode(TEXT + TEXT, add_special_tokens=False))
    special = min(tokenizer.special_token_ids, default=None)
    if special is not None:
        output = (*output[:3], special, *output[3:])
    stream, ahead = text_stream(tokenizer, request), len(TEXT)
    for token_id in output:
        assert shown.output(scores((token_id,)))["text_offset"] == [ahead]
        ahead += len(stream.push((token_id,)))
    assert ahead == len(TEXT + stream.text)


@pytest.mark.parametrize("broken", [b"\xff", b"\xf0", b"\xf0\x9f", b"\xe6\xbc\xe6", b"\x80\x80"])
def test_marks_for_bytes_that_are_no_character_stand_before_what_follows(tokenizer: Tokenizer, broken: bytes) -> None:
    of_byte = {tokenizer.token_bytes(one): one for one in reversed(range(tokenizer.vocab_size))}
    if any(bytes([byte]) not in of_byte for byte in broken):
        pytest.skip("the vocabulary has no token of this byte alone")
    (ahead,), (behind,) = (tokenizer.encode(one, add_special_tokens=False)[-1:] for one in ("x", "ab"))
    output = (ahead, *(of_byte[bytes([byte])] for byte in broken), behind, behind)
    request = PromptEncoder(tokenizer, None, 0).request("r", (ahead,), inflight.SamplingParams(), 0.0)
    offsets = LogprobPieces(TokenNames(tokenizer), request).output(scores(output))["text_offset"]
    text = text_stream(tokenizer, request)
    text.push(output)
    end = len(text.text) - 2 * len(tokenizer.token_bytes(behind))
    assert text.text[:end].endswith("\ufffd")
    assert offsets[-2:] == [end, end + len(tokenizer.token_bytes(behind))]


def test_without_a_tokenizer_there_is_no_text() -> None:
    request = PromptEncoder(None, None, 0).request("r", (1, 2), inflight.SamplingParams(), 0.0)
    shown = LogprobPieces(TokenNames(None), request)
    assert shown.prompt("", scores((2,)))["text_offset"] == [0, 0]
    assert shown.output(scores((3,)))["text_offset"] == [0]


def test_over_http_echoed_whole_and_streamed(server: Server) -> None:
    tokenizer = Tokenizer.load(BUILT_IN)
    ids = tuple(tokenizer.encode(TEXT))
    assert any(tokenizer.token_bytes(one)[0] & 0xC0 == 0x80 for one in ids), "a character of several tokens"
    body = {"prompt": TEXT, "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    check(tokenizer, ids, TEXT, offsets[: len(ids)])
    assert offsets[len(ids)] == len(TEXT)
    for name, offset in zip(choice["logprobs"]["tokens"], offsets, strict=True):
        assert name.startswith("bytes:") or choice["text"].startswith(name, offset)
