"""The official JSON Schema test suite: what of it we claim to follow, we follow.

It lies in the source archive of `jsonschema`, which pip brings into .foreign when it is first wanted. A schema that is
taken must take every valid instance and no invalid one; the others must be refused with a message. The suite says
nothing of how a text spells an instance, and a grammar names properties in one order and writes a number in one way: an
instance is taken if one of its spellings is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import pytest
from text.builders import byte_level

from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.json_schema.dialect import FORMATS as ENFORCED
from inflight.text import Tokenizer

from .vocabularies import vocabulary_of

PACKAGE = "jsonschema==4.26.0"
HOME = Path(__file__).parents[3] / ".foreign" / PACKAGE
TOKENIZER = Tokenizer(byte_level())
END = 361
SPELLINGS = 64  # of a part of an instance: the suite's are small
pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Known:
    """Tests of a file whose descriptions have these words come out otherwise; why."""

    file: str
    words: str
    why: str


FORMATS = "optional/format/"
BOTH = (
    Known("optional/ecmascript-regex.json", "zero-width whitespace", "U+FEFF is none of Rust's spaces"),
    Known("optional/ecmascript-regex.json", "Line tabulation", "control characters are written where one is named"),
    Known("optional/ecmascript-regex.json", "whitespace control", "control characters are written where one is named"),
    Known("optional/unknownKeyword.json", "type matches", "an $id counts wherever a schema may stand"),
    Known(f"{FORMATS}date.json", "leap year", "29 February is there in any year"),
    Known(f"{FORMATS}date.json", "29 days in February (normal)", "29 February is there in any year"),
    Known(f"{FORMATS}date-time.json", "leap second on a wrong", "a leap second may come in any minute"),
    Known(f"{FORMATS}time.json", "(wrong", "a leap second may come in any minute"),
    Known(f"{FORMATS}ipv6.json", "mixed format", "the end of an address is never written as IPv4's"),
    Known(f"{FORMATS}ipv6.json", "a long valid ipv6", "the end of an address is never written as IPv4's"),
)
KNOWN = {
    "draft2020-12": (
        *BOTH,
        Known("vocabulary.json", "no validation", "a metaschema of its own is not read"),
        Known("format.json", "only an annotation by default", "a format that is named is kept to, which it may be"),
        Known(f"{FORMATS}email.json", "quoted string with a", "names in quotation marks are never written"),
        Known(f"{FORMATS}email.json", "IPv6-address-literal", "addresses in place of a domain are never written"),
    ),
    "draft7": (
        *BOTH,
        Known("optional/content.json", "invalid", "what a text holds is noted, not looked into, as later drafts say"),
        Known("ref.json", "ref valid, maxItems ignored", "what stands beside a $ref counts, as later drafts say"),
        Known("ref.json", "$ref resolves to /definitions/base_foo", "an $id beside a $ref counts, as later drafts say"),
    ),
}
CLAIMED = {"draft2020-12": 0.9, "draft7": 0.92}  # of the schemas, at least


@pytest.fixture(scope="module")
def suite() -> Path:
    """Its folder."""
    if not HOME.exists():
        HOME.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
            asked = ["download", "--quiet", "--no-binary", ":all:", "--no-deps", "--dest", folder, PACKAGE]
            subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
            (archive,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            (found,) = Path(folder).glob("*/json/tests")
            found.rename(HOME)
    return HOME


@pytest.fixture(scope="module")
def compiled() -> Iterator[CompiledGrammars]:
    grammars = CompiledGrammars(lambda: vocabulary_of(TOKENIZER, 384, END))
    yield grammars
    grammars.close()


@pytest.mark.parametrize("draft", KNOWN)
def test_what_is_claimed_of_the_suite_is_followed(suite: Path, compiled: CompiledGrammars, draft: str) -> None:
    schemas = claimed = 0
    otherwise: list[tuple[str, str]] = []  # file and description
    for path in sorted((suite / draft).glob("**/*.json")):
        for group in json.loads(path.read_text()):
            schemas += 1
            grammar = Grammar("json_schema", json.dumps(group["schema"]))
            if is_refused(compiled, grammar):
                continue
            claimed += 1
            name = path.relative_to(suite / draft).as_posix()
            if name.startswith(FORMATS) and path.stem not in ENFORCED:
                continue  # an annotation
            otherwise += [
                (name, test["description"])
                for test in group["tests"]
                if any(takes(compiled, grammar, text) for text in spellings(test["data"])) != test["valid"]
            ]
    known = KNOWN[draft]
    assert [one for one in otherwise if not any(is_known(entry, *one) for entry in known)] == []
    assert [entry for entry in known if not any(is_known(entry, *one) for one in otherwise)] == [], "they are right now"
    print(f"{draft}: {claimed} of {schemas} schemas are claimed, {len(otherwise)} tests come out otherwise")
    assert claimed >= CLAIMED[draft] * schemas


def is_refused(compiled: CompiledGrammars, grammar: Grammar) -> bool:
    try:
        compiled.check(grammar)
    except RequestRefused as refusal:
        assert str(refusal).startswith("The JSON schema ") and str(refusal).endswith(".") and len(str(refusal)) > 30
        return True
    return False


def takes(compiled: CompiledGrammars, grammar: Grammar, text: str) -> bool:
    matcher, checks = compiled.outcome(grammar).matcher.deep_copy(), compiled.outcome(grammar).checks
    is_whole = matcher.consume_tokens(TOKENIZER.encode(text)) and matcher.is_accepting()
    return is_whole and (checks is None or checks.fault("", text.encode()) is None)


def is_known(entry: Known, file: str, description: str) -> bool:
    return entry.file == file and entry.words in description


def spellings(value: Any) -> Iterator[str]:
    """Properties in any order, and 1.0 as 1."""
    if isinstance(value, dict):
        for items in islice(permutations(value.items()), SPELLINGS):
            for texts in islice(product(*(list(spellings(one)) for _, one in items)), SPELLINGS):
                yield (
                    "{"
                    + ",".join(f"{spelled(name)}:{text}" for (name, _), text in zip(items, texts, strict=True))
                    + "}"
                )
    elif isinstance(value, list):
        for texts in islice(product(*(list(spellings(one)) for one in value)), SPELLINGS):
            yield "[" + ",".join(texts) + "]"
    else:
        yield spelled(value)
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))


def spelled(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
