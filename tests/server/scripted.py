"""`inflight` with scripted answers, on a device that computes nothing: run by `test_scripted` in place of the command
line, and by that as the engine's process. A prompt that ends in one of these words is answered by its text; any other
answer ends at once."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

from inflight import build
from inflight.core.types.executor import Executor
from inflight.testing.null import NullExecutor
from inflight.testing.scripted import ScriptedExecutor
from inflight.text import Tokenizer

ANSWERS = {
    "gap": "first\nsecond<|user|>unseen",  # <|user|> is a token of files in `write_filler`'s model
    "weather": '{"city": "Zürich", "unit": "°C"}',
    "tool": 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>',
    "think": "<think>\nHm.\n</think>\n\n42",
    "count": "one two three four five",
}
FILL = {
    "<|system|>": "<|fim_prefix|>",
    "<|tool|>": "<|fim_suffix|>",
    "<tool_call>": "<|fim_middle|>",
    "<|user|>": "<|repo_name|>",
    "<|assistant|>": "<|file_sep|>",
}

TEMPLATE = (
    "{% if tools %}<|system|>\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call></tool_call><|end|>\n"
    "{% endif %}{% for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>\n"
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>\n{% endfor %}<|assistant|>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)


TOOLLESS = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}<|assistant|>\n"
)


def write_qwenlike(folder: Path) -> Path:
    """The built-in model with a chat template that shows tools and reasoning, as a Qwen's does."""
    return _with_template(folder, TEMPLATE)


def write_plain_marks(folder: Path) -> Path:
    """As `write_qwenlike`, with a tokenizer in which <tool_call> is text too, as Qwen's have it."""
    path = write_qwenlike(folder) / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"]:
        token["special"] = "tool_call" not in token["content"]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def write_toolless(folder: Path) -> Path:
    """The built-in model with a chat template that knows no tools."""
    return _with_template(folder, TOOLLESS)


def write_filler(folder: Path) -> Path:
    """The built-in model, with a Qwen-Coder's fill-in-the-middle tokens in the places of its others."""
    path = _with_template(folder, TOOLLESS) / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    for old, new in FILL.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    path.write_text(text, encoding="utf-8")
    return folder


def _with_template(folder: Path, template: str) -> Path:
    shutil.copytree(build.BUILT_IN, folder)
    settings = folder / "tokenizer_config.json"
    config = json.loads(settings.read_text(encoding="utf-8"))
    settings.write_text(json.dumps({**config, "chat_template": template}), encoding="utf-8")
    return folder


def scripted(executor: Executor, *_: object) -> Executor:
    tokenizer = Tokenizer.load(build.BUILT_IN)
    end = tokenizer.eos_token_id
    assert end is not None

    def script(prompt: tuple[int, ...], sample: int) -> list[int]:
        asked = tokenizer.decode(list(prompt), skip_special_tokens=False).rpartition("<|user|>")[2]
        text = next((answer for word, answer in ANSWERS.items() if word in asked), "")
        return [*tokenizer.encode(text), end]

    return ScriptedExecutor(NullExecutor(executor.capacity), script)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        from inflight.launch import engine_process

        os._exit(engine_process.main(socket.socket(fileno=int(sys.argv[1])), scripted))
    from inflight import cli
    from inflight.launch import one_model

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    one_model.LOCAL_ENGINE = one_model.EngineProgram(module="scripted")
    sys.argv[0] = "inflight"
    cli.main()
