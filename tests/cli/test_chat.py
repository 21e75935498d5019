"""`inflight chat` with what a pipe types, and at a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import time
from pathlib import Path

import pytest

from inflight.cli.chat import Parts
from inflight.frontend.answers import TextSegment

from .terminal import Caller, finished, spawn

SHORT = ("--max-tokens", 4, "--ignore-eos")


def test_turns_follow_each_other(tiny: Path) -> None:
    result = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n\n   \nand then\n")
    assert (result.code, result.err) == (0, "")
    again = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\nand then\n/exit\nnever\n")
    assert (again.code, again.out, again.err) == (0, result.out, "")
    other = finished(spawn("chat", "--model", tiny, *SHORT), b"goodbye\nand then\n")
    assert other.out != result.out


def test_the_model_is_an_argument_as_of_serve(tiny: Path) -> None:
    named = finished(spawn("chat", tiny, *SHORT), b"hello\n")
    assert (named.code, named.err) == (0, "") and named.out == finished(
        spawn("chat", "--model", tiny, *SHORT), b"hello\n"
    ).out
    both = finished(spawn("chat", tiny, "--model", "smollm2"), b"")
    assert both.sentence() == f"MODEL {str(tiny)!r} and --model 'smollm2' both name a model; give one."


def test_commands(tiny: Path) -> None:
    result = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n/reset\n/help\nhello\n")
    once = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n")
    assert result.out == once.out * 2
    assert result.err.startswith("The conversation starts over.\nType a message; between three quotes")
    other = finished(spawn("chat", "--model", tiny, *SHORT), b"/models\n/clear\nhello\n/bye\nnever\n")
    assert other.out == once.out
    assert other.err.startswith("inflight: /models is no command. /help lists all.\n") and "starts over" in other.err
    system = finished(spawn("chat", "--model", tiny, "--system", "be brief", *SHORT), b"hello\n")
    assert system.out != once.out


def test_a_message_that_cannot_be_taken_is_left_out(tiny: Path) -> None:
    typed = b"caf\xe9\n" + b"long " * 300 + b"\nhello\n"
    result = finished(spawn("chat", "--model", tiny, *SHORT), typed)
    assert result.code == 0 and "Traceback" not in result.err
    assert "half of a surrogate pair" in result.err and "maximum context length is 256 tokens" in result.err
    assert result.err.count("(/clear starts a new conversation.)") == 2
    assert result.out == finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n").out


def test_ctrl_c_stops_an_answer_not_the_conversation(tiny: Path) -> None:
    process = spawn("chat", "--model", tiny, "--ignore-eos", "--temperature", 1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    result = finished(process, b"/exit\n")
    assert result.code == 0 and "Traceback" not in result.err


def test_models_and_settings_that_cannot_chat(inflight: Caller, bare: Path) -> None:
    assert "continues from one answer" in inflight("chat", "--n", 2).sentence()
    result = inflight("chat", "--model", bare, "--load-format", "dummy", model=False)
    assert "no chat template" in result.sentence()
    # Before anything is loaded: this folder has no weights.
    assert "no chat template" in inflight("chat", "--model", bare, model=False).sentence()


def test_a_message_may_have_several_lines(tiny: Path) -> None:
    one = finished(spawn("chat", "--model", tiny, *SHORT), b'"""hello\nand then\n"""\n')
    other = finished(spawn("chat", "--model", tiny, *SHORT), b'"""\nhello\nand then"""\n')
    assert one.out == other.out and one.out.count("\n") == 1 and (one.err, other.err) == ("", "")
    assert (
        finished(spawn("chat", "--model", tiny, *SHORT), b'"""hello').out.count("\n") == 1
    )  # the end of input ends it


def test_settings(tiny: Path) -> None:
    typed = b"""/set system be brief
hello
/set parameter num_predict 2
/set verbose
hello
/show system
/show parameters
/set parameter stop END
/set parameter temperature -1
/set parameter temprature 1
/set parameter num_ctx 9
/set nonsense
/set temperature 0.5
/set parameter temperature
/? set
/set think
/set quiet
/show template
/show nonsense
/show info
/set nohistory
"""
    result = finished(spawn("chat", "--model", tiny, *SHORT), typed)
    system = finished(spawn("chat", "--model", tiny, "--system", "be brief", *SHORT), b"hello\n")
    assert result.out.splitlines()[0] == system.out.splitlines()[0]
    for line in (
        r"\(2 tokens, the first after \d+ ms.*\)",
        "be brief",
        "max_tokens +2",
        "inflight: temperature is -1.*",
        "inflight: /set parameter takes a name and a value. Did you mean temperature\\? Names are: .*",
        "inflight: temperature is a parameter: /set parameter temperature 0.5",
        "inflight: /set parameter takes a name and a value. Names are: .*",
        "  /save FILE, /load FILE .*",
        "inflight: num_ctx is a setting of the start: end, and give --max-model-len.",
        "inflight: /set takes parameter NAME VALUE, .*",
        "inflight: This model's chat template has no switch for reasoning.",
        "inflight: /show takes info, parameters, system, template; .*",
        "family +llama",
        "weights +\\w+",
    ):
        assert re.search(f"^{line}$", result.err, re.MULTILINE), line


def test_reasoning_is_switched_by_the_template_s_variable(tiny: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[-1].content }}{% if enable_thinking %} think{% endif %}")
    typed = b"hello\n/set think\n/clear\nhello\n/set nothink\n/clear\nhello\n"
    out = finished(spawn("chat", "--model", tiny, "--chat-template", template, *SHORT), typed).out.splitlines()
    assert out[0] == out[2] != out[1]
    template.write_text("{{ messages[-1].content }}{{ reasoning_effort }}")
    result = finished(spawn("chat", "--model", tiny, "--chat-template", template), b"/set think\n/set think high\n")
    assert "This model always reasons; set how much: /set think low" in result.err and "Set think." in result.err


def test_answers_may_have_a_form(tiny: Path, tmp_path: Path) -> None:
    schema, saved = tmp_path / "schema.json", tmp_path / "saved.json"
    schema.write_text('{"enum": ["yes"]}')
    typed = f"""/set format {schema}
hello
/save {saved}
/clear
/set format json
hello
/clear
/set format ""
hello
/clear
/load {saved}
/clear
hello
/set noformat
/set format {tmp_path}/none
/set format
"""
    result = finished(spawn("chat", "--model", tiny, "--max-tokens", 12, "--temperature", 0), typed.encode())
    plain = finished(spawn("chat", "--model", tiny, "--max-tokens", 12, "--temperature", 0), b"hello\n").out
    assert result.out.startswith('"yes"\n{') and result.out.endswith(f'{plain}"yes"\n'), result.err
    assert result.err.count("Set format.") == 3 and "Set noformat." in result.err
    assert f'{tmp_path}/none does not exist; /set format takes json, a file of a JSON schema, or "".' in result.err
    assert "inflight: /set takes parameter NAME VALUE," in result.err


def test_reasoning_stands_between_marks() -> None:
    parts, thoughts, answer = Parts(), TextSegment(True), TextSegment(False)
    shown = ""
    for piece, segments in (("a", [thoughts]), ("b", [thoughts]), ("c", [thoughts, answer]), ("d", [thoughts, answer])):
        segments[-1].pieces.append(piece)
        shown += parts.new_text(segments)
    assert shown == "Thinking ...\nab\n... done thinking.\n\ncd"


def test_a_conversation_is_saved_and_loaded(tiny: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "saved.json", tmp_path / "other.json"
    other.write_text("[]")
    typed = f"/set system be brief\nhello\n/save {file}\n/save {other}\n/save\n/load {other}\nand then\n"
    first = finished(spawn("chat", "--model", tiny, *SHORT), typed.encode())
    assert f"Saved 2 messages in {file}." in first.err and "is there already, and is no conversation" in first.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and other.read_text() == "[]"
    assert [one["role"] for one in json.loads(file.read_text())["messages"]] == ["user", "assistant"]
    loaded = finished(spawn("chat", "--model", tiny), f"/load {file}\nand then\n/load {tmp_path / 'none'}\n".encode())
    assert loaded.out.splitlines()[-1].startswith(first.out.splitlines()[-1].split("\\")[0][:4])
    assert f"Loaded 2 messages from {file}." in loaded.err and "does not exist; /save FILE writes one." in loaded.err


def test_at_a_terminal_words_are_wrapped_and_lines_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shown = on_a_terminal(
        "chat", tiny, *SHORT, typed=["> ", "hello", "> ", "/set nohistory", "> ", "secret", "> ", "/bye"]
    )
    assert "/help lists commands, /bye (or Ctrl-D) ends." in shown and "Set nohistory." in shown
    assert shown.count("(The answer was cut at max_tokens, 4; /set parameter max_tokens -1 removes the limit.)") == 2
    history = tmp_path / "inflight" / "chat_history"
    assert history.read_text().splitlines()[-2:] == ["hello", "/set nohistory"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600 and stat.S_IMODE(history.parent.stat().st_mode) == 0o700


def test_run_with_a_model_alone_is_a_chat(tiny: Path) -> None:
    shown = on_a_terminal("run", tiny, *SHORT, typed=["> ", "/bye"])
    assert "Type a message; /help lists commands" in shown


def on_a_terminal(*arguments: object, typed: list[str]) -> str:
    """Return the output at a terminal. typed: each mark that is waited for, and the line that is typed then."""
    ours, theirs = pty.openpty()
    process = spawn(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, waiting, deadline = "", list(typed), time.monotonic() + 60
    seen = 0
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                piece = os.read(ours, 4096).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                break
            shown += piece
        if waiting and waiting[0] in shown[seen:]:
            seen = len(shown)
            os.write(ours, f"{waiting[1]}\r".encode())
            waiting = waiting[2:]
    os.close(ours)
    process.wait(10)
    return shown
