"""`inflight run` with one prompt: from the command line, from a pipe, as text and as JSON."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from inflight import __version__
from inflight.build import BUILT_IN
from inflight.cli import VERBS, call
from inflight.records.schema import read_records

from .terminal import COMMAND, Caller, finished, spawn

SHORT = ("--max-tokens", 6, "--ignore-eos")


def test_an_answer_and_the_same_again(inflight: Caller) -> None:
    first = inflight("run", "hello", *SHORT)
    assert (first.code, first.err) == (0, "") and first.out.endswith("\n") and len(first.out) > 1
    assert inflight("run", "hello", *SHORT) == first
    assert inflight("run", "hello", "--raw", *SHORT) != first


def test_as_json(inflight: Caller) -> None:
    result = inflight("run", "hello", "--json", "--logprobs", 1, *SHORT)
    (line,) = result.lines
    assert (line["index"], line["output_tokens"], line["finish_reason"]) == (0, 6, "length")
    assert len(line["logprobs"]) == 6 and line["timings"]["total_ms"] > 0
    assert line["text"] + "\n" == inflight("run", "hello", *SHORT).out


def test_the_prompt_is_scored(inflight: Caller) -> None:
    result = inflight("run", "hello world, hello there", "--json", "--prompt-logprobs", 1, "--max-tokens", 0)
    (line,) = result.lines
    assert (line["output_tokens"], line["text"], line["finish_reason"]) == (0, "", "length")
    first, *others = line["prompt_logprobs"]
    assert first is None and len(others) == line["prompt_tokens"] - 1 > 0
    assert all(entry["logprob"] <= entry["top"][0][1] <= 0 and len(entry["top"]) == 1 for entry in others)


def test_several_samples(inflight: Caller) -> None:
    result = inflight("run", "hello", "--n", 3, "--temperature", 1, "--json", *SHORT)
    (line,) = result.lines
    assert len(line["samples"]) == 3 and line["output_tokens"] == 18
    shown = inflight("run", "hello", "--n", 3, "--temperature", 1, *SHORT).out
    assert all(sample["text"] in shown for sample in line["samples"])


def test_sampling_options_reach_the_sampler(inflight: Caller) -> None:
    biased = inflight("run", "x", "--logit-bias", '{"70": 100}', "--max-tokens", 3, "--json").lines[0]
    assert biased["token_ids"] == [70, 70, 70]
    stopped = inflight(
        "run", "x", "--logit-bias", '{"70": 100}', "--stop-token-ids", 70, "--min-tokens", 2, "--json"
    ).lines[0]
    assert (len(stopped["token_ids"]), stopped["stop_reason"]) == (3, 70)
    drawn = [inflight("run", "x", "--temperature", 2, "--seed", seed, *SHORT).out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_into_a_file_and_with_a_record(inflight: Caller, tmp_path: Path) -> None:
    answer, record = tmp_path / "answer.txt", tmp_path / "record.jsonl"
    result = inflight("run", "hello", "--output", answer, "--record", record, *SHORT)
    assert (result.code, result.out) == (0, "")
    assert answer.read_text("utf-8") == inflight("run", "hello", *SHORT).out
    kinds = [one.__struct_config__.tag for one in read_records(record)]
    assert kinds[0] == "header" and kinds[-1] == "request" and kinds.count("step") == 6


def test_verbose_says_why(inflight: Caller) -> None:
    result = inflight("run", "hello", "--verbose", "--max-num-seqs", 5, "--no-prefix-caching", *SHORT)
    assert "max_num_seqs: 5 (as set)" in result.err
    assert "prefix_caching: False (as set)" in result.err
    assert "threads: 1 (as set)" in result.err
    assert " tokens, the first after " in result.err.splitlines()[-1]


def test_a_model_without_a_template_continues_the_text_and_says_so(
    inflight: Caller, tiny: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "plain")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    asked = ("run", "hello", "--max-tokens", 1, "--model", folder)
    said = "This model has no chat template, so it continues the text; --chat-template FILE gives it one."
    assert said in inflight(*asked, model=False).err
    assert said not in inflight(*asked, "--raw", model=False).err
    result = inflight(*asked, "--chat-template", "{{ messages[0].content }}", model=False)
    assert result.code == 0 and said not in result.err


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    shown = capfd.readouterr().out
    assert all(verb in shown for verb in VERBS)
    for verb in VERBS:
        assert call([verb, "--help"]) == 0
        assert f"Usage: inflight {verb}" in capfd.readouterr().out
    assert call(["--version"]) == 0
    assert capfd.readouterr().out == f"inflight {__version__}\n"
    assert call(["nosuch"]) == 2


# -- processes of their own ---------------------------------------------------------------------------------------
def test_a_prompt_from_a_pipe(tiny: Path, inflight: Caller) -> None:
    result = finished(spawn("run", "--model", tiny, *SHORT), b"hello\n")
    assert (result.code, result.err) == (0, "")
    assert result.out == inflight("run", "hello", *SHORT).out


def test_broken_text_from_a_pipe(tiny: Path) -> None:
    result = finished(spawn("run", "--model", tiny), b"caf\xe9")
    assert "half of a surrogate pair" in result.sentence()


@pytest.mark.parametrize("closed", [False, True])
def test_nothing_from_a_pipe_asks_a_question(tiny: Path, closed: bool) -> None:
    redirect = "<&-" if closed else "</dev/null"
    line = f'"$0" -m inflight.cli run --model "{tiny}" --max-tokens 3 {redirect}'
    done = subprocess.run(["sh", "-c", line, COMMAND[0]], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "(No prompt was given, so here is one: What is continuous batching?)\n"


def test_ctrl_c_keeps_what_was_said(tiny: Path) -> None:
    # Random text without an end; the model's length is the limit.
    process = spawn("run", "x", "--model", tiny, "--ignore-eos", "--max-tokens", 240, "--n", 1, "--temperature", 1)
    assert process.stdout is not None
    begun = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    result = finished(process)
    assert "Traceback" not in result.err and begun
    # A fast machine may be through before the signal comes.
    assert (result.code, result.err) in ((130, "Stopped.\n"), (0, ""))


def test_the_reader_goes_away(tiny: Path) -> None:
    line = f'"$0" -m inflight.cli run x --model "{tiny}" --ignore-eos --max-tokens 200 | head -c 1 >/dev/null'
    done = subprocess.run(["sh", "-c", line, COMMAND[0]], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


def test_on_a_terminal_it_streams_and_shows_the_pace(tiny: Path) -> None:
    shown = on_a_terminal("run", "hello", "--model", tiny, "--max-tokens", 20, "--ignore-eos")
    assert "(20 tokens, the first after " in shown and "tokens/s)" in shown


def test_on_a_terminal_without_a_prompt(tiny: Path) -> None:
    shown = on_a_terminal("run", "--model", tiny, "--max-tokens", 3)
    assert shown.startswith("(No prompt was given, so here is one: What is continuous batching?)")


@pytest.mark.wide
def test_progress_is_shown_where_no_lines_are(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "x", "max_tokens": 250, "ignore_eos": true}\n' * 200)
    shown = on_a_terminal("run", "--input", source, "--output", tmp_path / "out.jsonl", "--model", tiny)
    # A fast machine may be through before a bar is worth showing.
    assert ("/200 requests" in shown) == ("Answering" in shown)
    assert "200 requests answered in " in shown and "{" not in shown
    lines = on_a_terminal("run", "--input", source, "--max-tokens", 2, "--model", tiny)
    assert "Answering" not in lines and lines.count('{"index": ') == 200


def on_a_terminal(*arguments: object) -> str:
    """Return the visible text."""
    ours, theirs = pty.openpty()
    process = spawn(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
    assert process.wait(60) == 0, shown
    os.close(ours)
    return shown.decode("utf-8", "replace")


def test_doctor_as_json(inflight: Caller) -> None:
    result = inflight("doctor", "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert report["read_bytes_per_s"] > 0 and report["model"]["parameters"] > 0
    assert report["model"]["decode"][0]["tokens_per_s"] > 0
    assert report["model"]["quantization"] == "none"
    assert report["device"] in ("cpu", "cuda:0") and report["device_reason"]
    smaller = json.loads(inflight("doctor", "--json", "--quantization", "int8-all", "--kv-cache-dtype", "int8").out)
    assert 1.5 < report["model"]["kv_bytes_per_token"] / smaller["model"]["kv_bytes_per_token"] < 2
    assert 1.5 < report["model"]["weight_bytes"] / smaller["model"]["weight_bytes"] < 2
    assert smaller["flops_per_s"]["int8"] > 0


def test_a_broken_template_is_reported_where_it_is_needed(inflight: Caller, tmp_path: Path) -> None:
    """Prompts that are no messages are answered, with a warning; a conversation and a server end at start."""
    model = tmp_path / "model"
    shutil.copytree(BUILT_IN, model)
    (model / "chat_template.jinja").write_text("line\n{% if %}")
    mistake = "The model's chat template 'default' has an error in line 2"
    result = inflight("run", "hello", "--raw", "--model", model, *SHORT)
    assert result.code == 0 and result.out and f"inflight: warning: {mistake}" in result.err
    result = inflight("run", "hello", "--model", model, *SHORT)
    assert result.code != 0 and mistake in result.err and "Traceback" not in result.err
    for verb in ("chat", "serve"):
        words, free_port = [*COMMAND, verb, "--model", str(model)], os.environ | {"INFLIGHT_PORT": "0"}
        done = subprocess.run(words, input=b"", capture_output=True, timeout=100, env=free_port)
        assert done.returncode != 0
        assert mistake in done.stderr.decode() and "Traceback" not in done.stderr.decode()
