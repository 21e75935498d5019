"""`inflight chat` with what a pipe types."""

from __future__ import annotations

import signal
from pathlib import Path

from .terminal import Caller, finished, spawn

SHORT = ("--max-tokens", 4, "--ignore-eos")


def test_turns_follow_each_other(tiny: Path) -> None:
    told = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n\n   \nand then\n")
    assert (told.code, told.err) == (0, "")
    again = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\nand then\n/exit\nnever\n")
    assert (again.code, again.out, again.err) == (0, told.out, "")
    other = finished(spawn("chat", "--model", tiny, *SHORT), b"goodbye\nand then\n")
    assert other.out != told.out


def test_the_model_is_an_argument_as_of_serve(tiny: Path) -> None:
    named = finished(spawn("chat", tiny, *SHORT), b"hello\n")
    assert (named.code, named.err) == (0, "") and named.out == finished(
        spawn("chat", "--model", tiny, *SHORT), b"hello\n"
    ).out
    both = finished(spawn("chat", tiny, "--model", "smollm2"), b"")
    assert both.sentence() == f"MODEL {str(tiny)!r} and --model 'smollm2' both name a model; give one."


def test_commands(tiny: Path) -> None:
    told = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n/reset\n/help\nhello\n")
    once = finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n")
    assert told.out == once.out * 2
    assert told.err.startswith("The conversation starts over.\nType a message; /reset")
    other = finished(spawn("chat", "--model", tiny, *SHORT), b"/models\n/clear\nhello\n/bye\nnever\n")
    assert other.out == once.out
    assert other.err.startswith("/models is no command. Type a message;") and "starts over" in other.err
    system = finished(spawn("chat", "--model", tiny, "--system", "be brief", *SHORT), b"hello\n")
    assert system.out != once.out


def test_a_message_that_cannot_be_taken_is_left_out(tiny: Path) -> None:
    typed = b"caf\xe9\n" + b"long " * 300 + b"\nhello\n"
    told = finished(spawn("chat", "--model", tiny, *SHORT), typed)
    assert told.code == 0 and "Traceback" not in told.err
    assert "half of a surrogate pair" in told.err and "maximum context length is 256 tokens" in told.err
    assert told.err.count("(/reset starts a new conversation.)") == 2
    assert told.out == finished(spawn("chat", "--model", tiny, *SHORT), b"hello\n").out


def test_ctrl_c_stops_an_answer_not_the_conversation(tiny: Path) -> None:
    process = spawn("chat", "--model", tiny, "--ignore-eos", "--temperature", 1)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    told = finished(process, b"/exit\n")
    assert told.code == 0 and "Traceback" not in told.err


def test_models_and_settings_that_cannot_chat(inflight: Caller, bare: Path) -> None:
    assert "continues from one answer" in inflight("chat", "--n", 2).sentence()
    told = inflight("chat", "--model", bare, "--load-format", "dummy", model=False)
    assert "no chat template" in told.sentence()
    # Before anything is loaded: this folder has no weights.
    assert "no chat template" in inflight("chat", "--model", bare, model=False).sentence()
