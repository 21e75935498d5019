"""Run the tests whose judge is a document or a list of cases of others, and count them.

python -m benchmarks.judges conformance --write
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.results import table, write_section

ROOT = Path(__file__).parents[2]
# What judges, by the file of tests that asks it.
JUDGES = {
    "foreign/test_open_responses.py": "Open Responses: cases of its acceptance tests, its document",
    "foreign/test_api_documents.py": "OpenAI's and Anthropic's own OpenAPI documents of 2026-05-31, objects closed",
    "foreign/test_drawn_requests.py": "requests drawn from OpenAI's document by schemathesis",
    "foreign/test_fields.py": "fields that these clients can send",
    "server/test_vllm_cases.py": "[vLLM's API tests](vllm-api-cases.md), restated",
    "server/test_vllm_refusals.py": "… those that expect a refusal, and those about texts of answers",
    "foreign/test_client_types.py": "types of OpenAI's and Anthropic's newest clients",
    "server/test_openapi.py": "requests drawn from our own document by schemathesis",
}
NOTE = (
    "A test of a closed object fails at an unknown field. What may differ is named in the test with "
    "the reason: vLLM's `stop_reason` and fields of models, null where the services' own examples have it, `citations` "
    "of Anthropic's texts. Images, files and tools that a provider runs are refused by index and type, as are the "
    "cases of Open Responses about them; `/responses/compact` and WebSockets are not served."
)


def counted(file: str) -> tuple[int, int]:
    """Run a file of tests; return how many there are and how many passed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        asked = ["-m", "", "-q", "--junitxml", str(path), f"tests/{file}"]
        subprocess.run([sys.executable, "-m", "pytest", *asked], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    total = int(suite.attrib["tests"]) - int(suite.attrib["skipped"])
    return total, total - int(suite.attrib["failures"]) - int(suite.attrib["errors"])


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judges conformance", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results/judges.md")
    arguments = parser.parse_args(given)
    rows = [(judge, f"`tests/{file}`", *counted(file)) for file, judge in JUDGES.items()]
    report = f"{table(('judge', 'asked by', 'tests', 'passed'), rows)}\n\n{NOTE}"
    print(report)
    if arguments.write:
        title = "The APIs' own documents and cases"
        write_section("conformance", title, "python -m benchmarks.judges conformance", report)


if __name__ == "__main__":
    main()
