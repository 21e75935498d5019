"""Detection: every format by its beginning, and what is said of files that have none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from inflight.workload.traces import FORMATS, detect, load
from inflight.workload.traces.files import Source
from inflight.workload.workload import WorkloadError

FIXTURES = Path(__file__).parent.parent / "fixtures"
KNOWN = {
    "azure_2023.csv": "azure",
    "azure_2024.csv": "azure",
    "azure_2025.csv.gz": "azure",
    "burstgpt_1.csv": "burstgpt",
    "burstgpt_3.csv": "burstgpt",
    "mooncake.jsonl": "mooncake",
    "bailian.jsonl": "bailian",
    "sharegpt.json": "sharegpt",
    "prompts.jsonl": "custom",
    "lengths.jsonl": "custom",
    "lengths.csv": "custom",
    "record.jsonl": "record",
    "vllm_result.json": "vllm-result",
}

ODD = [b"", b'"', b"\n", b"{", b"[", b"]", b",", b"null", b"-1", b"1e400", b"NaN", b"9" * 400, b"true", b'"x"']
ODD += [b"\xff", b"[[[["]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def test_every_fixture_and_every_format_is_among_them() -> None:
    assert set(KNOWN) == {path.name for path in FIXTURES.iterdir()}
    assert set(KNOWN.values()) == {format.name for format in FORMATS}


@pytest.mark.parametrize("name", KNOWN)
def test_formats_are_known_by_their_beginning(name: str, file: Path) -> None:
    """Plain or zipped, whatever the file is called, and with the mark that some programs put first."""
    assert detect(FIXTURES / name).name == KNOWN[name]
    raw = (FIXTURES / name).read_bytes()
    data = gzip.decompress(raw) if name.endswith(".gz") else raw
    file.write_bytes(gzip.compress(b"\xef\xbb\xbf" + data))
    assert load(file).entries == load(FIXTURES / name).entries
    assert [format.name for format in FORMATS if format.recognises(Source(file).head())] == [KNOWN[name]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("a,b\n1,2\n", "columns a, b"),
        ('{"colour": 3}\n', "JSON with the keys colour"),
        ("[1, 2]", "'[1, 2]'"),
        ("{broken", "text that begins with '{broken'"),
        ('{"a": ' + "[" * 9000, "JSON with the keys a"),
    ],
)
def test_an_unknown_format_says_what_was_found_and_looked_for(file: Path, text: str, found: str) -> None:
    file.write_text(text)
    with pytest.raises(WorkloadError) as raised:
        load(file)
    assert found in str(raised.value)
    assert all(format.name in str(raised.value) for format in FORMATS)


def test_a_broken_or_very_long_first_line_does_not_hide_the_format(file: Path) -> None:
    file.write_text('{"timestamp": 0, "input_len\n' + (FIXTURES / "mooncake.jsonl").read_text())
    trace = load(file)
    assert trace.format == "mooncake" and len(trace.entries) == 4 and trace.dropped == {"malformed: not JSON": 1}
    result = {"input_lens": [5] * 30_000, "output_lens": [3] * 30_000, "start_times": [k / 7 for k in range(30_000)]}
    file.write_text(json.dumps(result))
    assert len(load(file).entries) == 30_000


def test_a_format_that_is_named_is_believed() -> None:
    with pytest.raises(WorkloadError, match="no column 'request tokens'"):
        load(FIXTURES / "azure_2023.csv", "burstgpt")
    with pytest.raises(WorkloadError, match="'weka' is not known; known are azure"):
        load(FIXTURES / "azure_2023.csv", "weka")


def test_files_that_cannot_be_read_are_said(file: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        load(file)
    file.write_bytes((FIXTURES / "azure_2025.csv.gz").read_bytes()[:-12])
    with pytest.raises(WorkloadError, match="cannot be read"):
        load(file)


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(ODD) | st.binary(max_size=4)), min_size=1, max_size=4
)


@pytest.mark.parametrize("name", KNOWN)
@given(edits=EDITS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_in_a_file_is_read_or_refused_in_words(name: str, edits: list[tuple[float, int, bytes]]) -> None:
    """At some places of a good file, some bytes are cut out and others put in their place."""
    raw = (FIXTURES / name).read_bytes()
    text = gzip.decompress(raw) if name.endswith(".gz") else raw
    for place, cut, odd in edits:
        start = round(place * len(text))
        text = text[:start] + odd + text[start + cut :]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace"
        file.write_bytes(text)
        for format in (None, KNOWN[name]):
            try:
                trace = load(file, format)
            except WorkloadError as error:
                assert str(file) in str(error)
            else:
                times = [entry.arrival for entry in trace.entries]
                assert times == sorted(times) and times[0] == 0
                assert all(entry.prompt_tokens > 0 < entry.output_tokens for entry in trace.entries)
                assert all(entry.after < k for k, entry in enumerate(trace.entries) if entry.after is not None)


@pytest.mark.parametrize("lacks", ["finish_reason", "token_ids"])
def test_a_recorded_request_with_a_part_missing_is_reported_by_its_line(file: Path, lacks: str) -> None:
    lines = (FIXTURES / "record.jsonl").read_text(encoding="utf-8").splitlines()
    place = next(k for k, line in enumerate(lines) if json.loads(line)["kind"] == "request")
    record = json.loads(lines[place])
    del record["samples"][0][lacks]
    lines[place] = json.dumps(record)
    file.write_text("\n".join(lines), encoding="utf-8")
    trace = load(file)
    assert any(f"line {place + 1}" in note or "missing" in note for note in trace.notes)
