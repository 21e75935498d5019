"""The model of `--speculation draft:MODEL`: which files it is, and whether its tokens are those of the model.

Knows its settings, which are the model's but for what the files say; which shapes go together and how it drafts,
`execution.drafters` knows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inflight.build.limits import Limits
from inflight.execution.backends.protocol import KVShape
from inflight.execution.checkpoints.checkpoint import resolve_model
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.drafters.draft_model_source import DraftModelSource
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.models.registry import read_folder
from inflight.text import Tokenizer

_ALIKE = 0.99  # of the tokens must be the same; of one family, reserved ones may have got other names


def draft_model(
    name: str, computed: ComputedModel, limits: Limits, shape: KVShape, windows: tuple[int, ...]
) -> DraftModelSource:
    """name: a folder, a GGUF file or a hub id. computed, shape, windows: of the model. Raises ModelError for a draft
    model that is not there, or does not go together with the model."""
    assert isinstance(computed, KernelModel)
    folder = resolve_model(name)
    files = gguf_at(folder) or folder
    spec = read_folder(files, to_run=True)
    own = replace(computed, spec=spec, files=files)
    source = DraftModelSource.of(
        own, computed.spec, shape, windows, limits.max_model_len, limits.max_tokens, limits.logit_rows
    )
    _check_tokens(computed.files, files, computed.spec.name, spec.name)
    return source


def _check_tokens(of_model: Path | GGUFModel, of_draft: Path | GGUFModel, model: str, draft: str) -> None:
    """A folder may come without a tokenizer: then ids are all there is. Raises TokenizerError for one that cannot be
    read."""
    if _same_file(of_model, of_draft):
        return
    if not (_has_tokenizer(of_model) and _has_tokenizer(of_draft)):
        return
    tokens, others = Tokenizer.load(of_model).token_ids, Tokenizer.load(of_draft).token_ids
    alike = sum(others.get(token) == token_id for token, token_id in tokens.items())
    if alike < _ALIKE * len(tokens):
        raise ModelError(
            f"{alike:,} of the {len(tokens):,} tokens of {model} have the same ids in the draft model {draft}, so that "
            "its drafts would mean another text; take a draft model with the same tokenizer."
        )


def _same_file(one: Path | GGUFModel, other: Path | GGUFModel) -> bool:
    """Whether both have the same tokenizer.json, byte for byte."""
    if isinstance(one, GGUFModel) or isinstance(other, GGUFModel):
        return False
    if not (_has_tokenizer(one) and _has_tokenizer(other)):
        return False
    return (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()


def _has_tokenizer(files: Path | GGUFModel) -> bool:
    return isinstance(files, GGUFModel) or (files / "tokenizer.json").is_file()
