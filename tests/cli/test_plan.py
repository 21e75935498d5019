"""`inflight plan`: the question on the command line, the answer on standard output, mistakes in a sentence."""

from __future__ import annotations

import io
import json
import tomllib
from functools import partial
from pathlib import Path

import pytest

from inflight.cli import call
from inflight.planning.parallel import WorkerKilled
from inflight.planning.question import Question

from .terminal import CommandResult

LLAMA = ("--model", "llama-3-70b", "--hardware", "a100-80")
CHAT = ("--input-tokens", "lognormal:1020:4142", "--output-tokens", "lognormal:129:601")
SMALL = ("--model", "llama-3-8b", "--hardware", "h100", "--rate", 4, "--input-tokens", 200, "--output-tokens", 20)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of trials that were run before, by any of these tests."""
    return tmp_path_factory.mktemp("trials")


@pytest.fixture
def plan(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trials: Path):  # type: ignore[no-untyped-def]
    """Trials of few requests: what is looked at is the question and the form of the answer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(trials))
    monkeypatch.setattr("inflight.cli.plan.Question", partial(Question, requests=(60, 120, 240)))

    def ask(*arguments: object) -> CommandResult:
        code = call(["plan", *(str(one) for one in arguments)])
        out, err = capfd.readouterr()
        return CommandResult(code, out, err)

    return ask


@pytest.mark.wide
def test_a_70b_model_for_five_hundred_requests_a_second(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The question that a buyer asks: how many nodes, which settings, why, and how sure?"""
    config = tmp_path / "engine.toml"
    asked = (*LLAMA, *CHAT, "--rate", 500, "--slo", "ttft=1000(p99)", "--tensor-parallel", 8)
    result = plan(*asked, "--write-config", config)
    assert result.code == 0, result.err
    assert "nodes of 8 GPUs" in result.out
    assert "not calibrated on your hardware" in result.out
    assert "simulated: an engine on cuda with 2 steps in flight" in result.out
    assert "TTFT p99 ≤ 1,000 ms is missed first" in result.out
    assert "with all that is uncertain of step times at its fast and at its slow end" in result.out
    assert "not considered:" in result.out and "(--compare-layouts)" in result.out
    assert "Bottleneck:" in result.out and "What would change it:" in result.out
    assert "$ per million output tokens" in result.out
    settings = tomllib.loads(config.read_text())
    assert settings["strategy"] == "chunked" and settings["max-num-seqs"] >= 8
    assert "replicas of" in config.read_text().splitlines()[0]


def test_a_checkpoint_in_mxfp4_is_planned_as_it_is_held(plan) -> None:  # type: ignore[no-untyped-def]
    """65.2 GB, as the files of gpt-oss-120b: experts in 4.25 bits, all else in bf16."""
    result = plan("--model", "openai/gpt-oss-120b", "--hardware", "h100", *SMALL[4:], "--tensor-parallel", 1, "--fast")
    assert result.code == 0 and "weights 65.2," in result.out, result.err
    assert "computed as mxfp4, since the model is published in mxfp4, 4 bits" in result.err


def test_a_page_with_sliders_is_written(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "plan.html"
    result = plan(*SMALL, "--slo", "ttft=500", "--price", 3, "--tensor-parallel", 1, "--fast", "--html", page)
    assert result.code == 0 and "16 of 16: h100, steps of" in result.err, result.err
    content = page.read_text()
    assert 'type="range" id="rate"' in content and "The plan itself: 1 replica of h100" in content
    assert "would be overwritten" in plan(*SMALL, "--trace", page, "--html", page).sentence()
    assert "would be overwritten" in plan(*SMALL, "--write-config", page, "--html", page).sentence()


def test_json_for_programs(plan) -> None:  # type: ignore[no-untyped-def]
    result = plan(*SMALL, "--slo", "ttft=500,itl=50(p95)", "--price", 3, "--json")
    answer = json.loads(result.out)
    assert answer["possible"] is True and answer["replicas"] == answer["nodes"] == 1
    assert answer["binds"]["relief"]
    assert answer["cost"]["per_hour"] == 3 * answer["gpus"]
    assert answer["latency_s"]["ttft"]["p99"]["expected"] <= 0.5
    assert answer["settings"]["max-num-seqs"]["reason"]
    assert answer["calibrated"] is False
    assert (answer["device"], answer["steps_in_flight"]) == ("cuda", 2)
    assert any("One replica" in sentence for sentence in answer["mistakes"])


def test_an_impossible_slo_is_answered_with_what_is_possible(plan) -> None:  # type: ignore[no-untyped-def]
    result = plan(*SMALL, "--slo", "ttft=1(p99)")
    assert result.code == 1
    assert "No number of replicas meets TTFT p99 ≤ 1 ms" in result.out
    assert "Ask for --slo ttft=" in result.out and "with hardly any load" in result.out


def test_a_trace_brings_its_notes_and_its_peak(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:00:{k % 60:02d}.0000000,{100 + k},{10 + k % 20}" for k in range(60)]
    rows[5], rows[6] = rows[6], rows[5]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = plan("--model", "llama-3-8b", "--hardware", "h100", "--trace", trace, "--slo", "ttft=1000", "--fast")
    assert result.code == 0, result.err
    assert "Rows that came before the row above them: 1" in result.out
    assert "for 1 requests/s whose gaps" in result.out


def test_a_box_without_gpus_is_planned_from_the_data_sheet_of_its_processor(plan) -> None:  # type: ignore[no-untyped-def]
    lengths = ("--input-tokens", 300, "--output-tokens", 60)
    result = plan(
        "--model", "qwen3-30b-a3b", "--weights", "int4", "--hardware", "epyc-9654", *lengths, "--rate", 0.5, "--fast"
    )
    assert result.code == 0, result.err
    text = " ".join(result.out.split())
    assert "1 replica of epyc-9654 for 0.5 requests/s" in text and "GB per processor: weights 20.1" in text
    assert "simulated: an engine on cpu with 1 step in flight" in text and "J per output token" in text
    assert "cost 4.42 $/h" in text
    assert (
        "step times come from data sheets and estimated efficiencies\n" in result.out
        and "processors with more" in text
        and "GPU" not in text
    )


def test_a_trace_of_texts_is_planned_for_by_its_lengths(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "trace.jsonl"
    rows = [{"prompt": "word " * (20 + k), "output_tokens": 5 + k % 7, "timestamp": 0.25 * k} for k in range(80)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = plan("--model", "llama-3-8b", "--hardware", "h100", "--trace", trace, "--slo", "ttft=1000", "--fast")
    assert result.code == 0, result.err
    assert "Lengths of texts are estimated" in result.out


def test_a_place_that_cannot_be_written_is_reported_before_the_work(  # type: ignore[no-untyped-def]
    plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inflight.cli.plan.plan", lambda *given, **more: pytest.fail("it was planned"))
    config = tmp_path / "nowhere" / "engine.toml"
    assert "nowhere does not exist; create it first" in plan(*SMALL, "--write-config", config).sentence()


def test_a_hardware_file_adds_a_gpu(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.toml"
    path.write_text("[gpus.mine]\nmemory-gb = 80\nbandwidth-gb-per-s = 3000\nbf16-tflops = 800\n")
    mine = ("--model", "llama-3-8b", "--hardware", "mine", "--hardware-file", path)
    result = plan(*mine, *SMALL[4:], "--slo", "ttft=500", "--fast")
    assert result.code == 0, result.err
    assert "mine: as mine.toml says" in result.out and "no price is known" in result.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "llama-3-70b"), "--hardware (a GPU by its data sheet) and --step-model"),
        (("--hardware", "h100"), "Missing option '--model'"),
        (
            (*LLAMA[:2], "--hardware", "h1000", *CHAT, "--rate", 1),
            "--hardware is 'h1000', which is not known. Did you mean h100",
        ),
        (
            ("--model", "llama-9", *LLAMA[2:], *CHAT, "--rate", 1),
            "The shape of the model 'llama-9' is not known. Did you mean",
        ),
        ((*LLAMA, *CHAT), "Missing option '--rate'"),
        ((*LLAMA, "--rate", 5), "Missing option '--input-tokens'"),
        ((*LLAMA, *CHAT, "--rate", 0), "rate is 0"),
        ((*LLAMA, *CHAT, "--rate", 5, "--slo", "fast"), "--slo is 'fast'; give ttft"),
        ((*SMALL, "--slo", "ttft=500(p50),ttft=300"), "TTFT p50 ≤ 500 ms can never be missed; correct one of them"),
        ((*SMALL, "--fast", "--compare-strategies"), "--fast leaves comparisons out, and --compare-strategies asks"),
        ((*SMALL, "--fast", "--compare-layouts"), "--fast leaves comparisons out, and --compare-layouts asks for one"),
        ((*LLAMA, *CHAT, "--arrivals", "gamma:5:0"), "burstiness is 0"),
        ((*LLAMA, *CHAT, "--arrivals", "ramp:1-5:60"), "--arrivals ramp:1-5:60 is no steady random process"),
        ((*LLAMA, *CHAT, "--rate", 5, "--arrivals", "poisson:5"), "both say when requests come"),
        ((*LLAMA, *CHAT, "--rate", 5, "--price", -1), "--price is -1"),
        ((*LLAMA, *CHAT, "--rate", 5, "--tensor-parallel", 16), "--tensor-parallel is 16, but NVLink joins 8"),
        (
            (*LLAMA, *CHAT, "--rate", 5, "--data-parallel", 2),
            "has no experts, and --data-parallel 2 would be 2 engines",
        ),
        ((*LLAMA, *CHAT, "--rate", 5, "--pipeline-parallel", 99), "has 80 layers, fewer than 99 pipeline stages"),
        ((*LLAMA, *CHAT, "--rate", 5, "--expert-parallel"), "among the GPUs of a stage, which has 1"),
        (
            (*LLAMA, *CHAT, "--rate", 5, "--pipeline-parallel", 2, "--write-config", "engine.toml"),
            "shares a model by --tensor-parallel alone, and PP2 is asked for",
        ),
        ((*LLAMA, *CHAT, "--rate", 5, "--tensor-parallel", 3), "64 query heads, which 3 GPUs cannot share"),
        ((*LLAMA, *CHAT, "--rate", 5, "--tensor-parallel", 1), "fit on none of: a100-80: weights take 141"),
        ((*LLAMA, "--input-tokens", "many", "--output-tokens", 5, "--rate", 5), "Lengths 'many' are of no known form"),
        ((*LLAMA, *CHAT, "--rate", 5, "--strategy", "magic"), "--strategy is 'magic'"),
        ((*SMALL, "--weights", "mxfp4"), "--weights mxfp4 is a format of experts, and llama-3-8b has none; give int4"),
        ((*SMALL, "--max-num-seqs", 0), "--max-num-seqs is 0"),
        ((*SMALL, "--transfer-gbps", 100), "--transfer-gbps has no effect without --compare-layouts"),
        ((*SMALL, "--decode-asks", "first"), "--decode-asks has no effect without --compare-layouts"),
        ((*SMALL, "--compare-layouts", "--transfer-gbps", 0), "--transfer-gbps is 0; give gigabits per second"),
        ((*SMALL, "--compare-layouts", "--kv-cache-host", -1), "--kv-cache-host is -1; give GiB"),
        ((*SMALL, "--compare-layouts", "--kv-cache-disk", 9), "--kv-disk-write-gb-per-s go together"),
        ((*SMALL, "--max-num-seqs", -1), "--max-num-seqs is -1"),
        ((*SMALL, "--max-num-batched-tokens", 0), "--max-num-batched-tokens is 0"),
        (
            (*SMALL, "--max-num-seqs", 64, "--max-num-batched-tokens", 32),
            "--max-num-batched-tokens is 32, but 64 sequences may run at once",
        ),
        (
            (*LLAMA, *CHAT, "--rate", 5, "--max-num-batched-tokens", 1, "--slo", "ttft=900"),
            "too many to simulate; give at least",
        ),
        ((*SMALL, "--strategy", "static", "--max-num-batched-tokens", 64), "has no effect with --strategy static"),
        (
            (*SMALL[:6], "--input-tokens", 9000, "--output-tokens", 20),
            "100% of the requests have more than the 8,192 tokens",
        ),
    ],
)
def test_mistakes_are_reported_in_a_sentence(plan, arguments: tuple[object, ...], sentence: str) -> None:  # type: ignore[no-untyped-def]
    assert sentence in plan(*arguments).sentence()


def test_what_goes_with_a_trace_alone_is_reported(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01,10,10\n2023-11-16 18:00:02,10,10\n")
    assert "--trace has the lengths of requests" in plan(*LLAMA, *CHAT, "--trace", trace).sentence()


def test_a_family_of_ones_own_is_named_by_its_place(  # type: ignore[no-untyped-def]
    plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.json names no family that is known."""
    (tmp_path / "private_models.py").write_text(
        "from inflight.models.families.llama import layers\n"
        "from inflight.models.family import Family\n"
        "FAMILY = Family(name='private', architectures=('Private',), model_types=(), layers=layers)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16}
    config = {"architectures": ["Nobodys"], "vocab_size": 32_000, "max_position_embeddings": 4096, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ask = ("--hardware", "l4", "--rate", 1, "--input-tokens", 200, "--output-tokens", 20, "--model", tmp_path)
    assert "Nobodys is an architecture that is not supported" in plan(*ask).err
    result = plan(*ask, "--family", "private_models:FAMILY", "--fast")
    assert result.code == 0 and "1 replica of l4" in result.out, result.err
    assert "--family private_models:NONE cannot be loaded" in plan(*ask, "--family", "private_models:NONE").err
    assert "--family private has no effect" in plan(*SMALL, "--family", "private_models:FAMILY").err
    assert "--family is about --hardware" in plan("--step-model", tmp_path / "config.json", "--family", "a:B").err


def answers(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have a terminal on which these lines are typed."""
    typed = io.StringIO("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)


def test_without_arguments_a_terminal_is_asked(plan, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    answers(
        monkeypatch,
        *("lama-3-8b", "llama-3-8b", "h1000", "h100", "free", ""),
        *("-4", "nan", "4", "200", "20", "soon", "0 s", "1000 s", "none"),
    )
    result = plan()
    assert result.code == 0, result.err
    assert (
        "Did you mean llama-3-8b" in result.err
        and "h1000" in result.err
        and "-4 is not a rate" in result.err
        and "nan is not a rate" in result.err
        and "'free' is no price" in result.err
        and "'soon' is no time; give milliseconds such as 500" in result.err
        and "'0 s' is no limit" in result.err
    )
    asked = "--model llama-3-8b --hardware h100 --rate 4 --input-tokens 200 --output-tokens 20 --slo ttft=1000000"
    assert f"inflight plan {asked}" in result.err
    assert "1 replica of h100" in result.out


def test_a_trace_may_be_the_answer(plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "t.csv"
    rows = "".join(f"2023-11-16 18:{number // 60:02}:{number % 60:02}.0000000,100,10\n" for number in range(200))
    trace.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    other = tmp_path / "notes.txt"
    other.write_text("no trace\n")
    answers(monkeypatch, "llama-3-8b", "h100", "3", str(other), str(trace), "", "")
    result = plan()
    assert result.code == 0 and f"--price 3 --trace {trace}" in result.err, result.err
    assert f"Error: {other}" in result.err, "refused when it is given"


def test_of_a_model_without_answers_no_tokens_of_answers_are_asked_for(  # type: ignore[no-untyped-def]
    plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "bge-m3", "l4", "", "40", "200", "300")
    result = plan()
    assert result.code == 0 and "--rate 40 --input-tokens 200 --slo ttft=300" in result.err, result.err


def test_nothing_is_asked_without_a_terminal_or_beside_an_environment(  # type: ignore[no-untyped-def]
    plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give one of them" in plan().sentence()
    answers(monkeypatch)
    monkeypatch.setenv("INFLIGHT_MODEL", "llama-3-8b")
    assert "give one of them" in plan().sentence()


def test_texts_of_a_model_without_answers_are_sized(plan) -> None:  # type: ignore[no-untyped-def]
    given = ("--model", "bge-m3", "--hardware", "l4", "--rate", 400, "--input-tokens", "lognormal:180:700", "--fast")
    result = plan(*given, "--slo", "ttft=300(p90)")
    assert result.code == 0 and "texts of 2" in result.out and "whose answers are vectors" in result.out
    assert "--strategy continuous: each text is computed in one step" in result.out
    assert "output tokens" not in result.out
    refused = plan(*given, "--output-tokens", 20)
    assert "answers with vectors, which have no tokens" in refused.sentence()
    assert "between tokens, and vectors have none" in plan(*given, "--slo", "tpot=20").sentence()


def test_a_model_that_answers_is_sized_for_vectors_where_there_are_no_answers(plan) -> None:  # type: ignore[no-untyped-def]
    given = ("--model", "qwen3-embedding-0.6b", "--hardware", "l4", "--rate", 50, "--input-tokens", 200, "--fast")
    result = plan(*given, "--output-tokens", 0, "--slo", "ttft=300(p90)")
    assert result.code == 0 and "whose answers are vectors" in result.out and "--strategy chunked" in result.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpus", 1), "--rate and --gpus both say how much traffic there is"),
        (("--sessions", 5), "--rate and --sessions both say"),
        (("--think", 5), "--think is of conversations of several turns; give --turns"),
        (("--turns", 3, "--think", "nan"), "--think is nan; give seconds between an answer and the next turn, from 0"),
        (("--turns", 0), "--turns 0: A length is 0 tokens"),
        (
            ("--turns", 8, "--think", 1e7),
            "--rate is 4 conversations/s, so that 280,000,000 conversations of 8 turns or more would be open",
        ),
        (("--prefix-groups", 5), "prefixes have no length; give --prefix-tokens"),
        (("--startup-seconds", 30), "--startup-seconds is of replicas that come and go"),
        (("--spot-loss", 1), "a chance above 0 and below 1"),
        (("--slo", "chat.ttft=500"), "--slo limits the class 'chat', but there are no --classes"),
    ],
)
def test_demands_that_contradict_themselves_are_refused(  # type: ignore[no-untyped-def]
    plan, arguments: tuple[object, ...], sentence: str
) -> None:
    assert sentence in plan(*SMALL, *arguments).sentence()


def test_a_class_in_a_lane_that_engines_lack_is_refused(plan, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    classes = tmp_path / "classes.toml"
    classes.write_text('[classes.a]\nshare = 1\ninput = 200\noutput = 30\nlane = "bulk"\n', encoding="utf-8")
    asked = plan("--model", "llama-3-8b", "--hardware", "h100", "--rate", 4, "--classes", classes)
    assert "the class 'a' in the lane 'bulk', which planned engines lack" in asked.sentence()


def test_a_worker_that_is_killed_is_reported_in_its_sentence(plan, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def killed(*arguments: object, **options: object) -> None:
        raise WorkerKilled("A process of this command ended with -9; try again with more memory free.")

    monkeypatch.setattr("inflight.cli.plan.plan", killed)
    result = plan(*SMALL)
    assert result.code == 1
    assert result.err.endswith("inflight: A process of this command ended with -9; try again with more memory free.\n")
