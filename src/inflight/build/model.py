"""Find a model's files and what computes it: our kernels, or the modules of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from inflight.build.limits import graph_limits
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError, read_template
from inflight.execution.checkpoints.hub import hub_cache, resolve_model, resolve_tokenizer
from inflight.execution.checkpoints.packaged.catalogue import is_dequantized
from inflight.execution.computing import ComputedModel, KernelModel, LoadFormat
from inflight.execution.graphs import NO_GRAPHS
from inflight.extras import pip_install
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.pooler import by_next_token, with_pooling
from inflight.models.registry import family_at, read_folder
from inflight.models.spec import ModelSpec
from inflight.text import TextFiles

BUILT_IN = Path(__file__).parents[1] / "builtin_model"


def model_folder(settings: EngineSettings) -> Path:
    """Return the model's folder or GGUF file, fetched where it is not here. Raises ModelError."""
    if settings.model is None:
        return BUILT_IN
    with hub_cache(settings.download_dir):
        return resolve_model(settings.model, settings.revision)


def text_files(settings: EngineSettings) -> TextFiles:
    """Return where the model's tokenizer and chat template are read from, by the settings. Raises ModelError, and
    ChatTemplateError for a template of the settings that does not compile."""
    template, variables, tokenizer = settings.chat_template, settings.chat_template_kwargs, ""
    if settings.tokenizer is not None:
        with hub_cache(settings.download_dir):
            tokenizer = str(resolve_tokenizer(settings.tokenizer))
    source = "" if template is None else read_template("--chat-template", template)
    files = TextFiles(str(model_folder(settings)), tokenizer, source, json.dumps(variables) if variables else "")
    if files.template:
        files.load_template().compile()
    return files


def load_format_of(settings: EngineSettings) -> LoadFormat:
    """Return how the model's files are read: as set, or as the catalogue has it for a model that is named there."""
    return "dequantize" if settings.load_format == "auto" and is_dequantized(settings.model) else settings.load_format


def has_chat_template(settings: EngineSettings) -> bool:
    """Return whether the model that the settings name has a chat template; reads no weights."""
    return text_files(settings).load_template().is_available


def computed_model(files: Path | GGUFModel, settings: EngineSettings, device: str) -> ComputedModel:
    if settings.backend == "auto":
        family = None if settings.family is None else family_at(settings.family)
        spec = read_folder(files, to_run=True, family=family)
        if settings.pooling != "auto":
            spec = with_pooling(spec, settings.pooling)
        if settings.score_tokens is not None:
            spec = by_next_token(spec, settings.score_tokens, _token_ids(text_files(settings), settings.score_tokens))
        load_format, spec = load_format_of(settings), held_spec(spec, settings)
        group = settings.quantization_group_size
        graphs = NO_GRAPHS if device == "cpu" else graph_limits(settings, spec)
        return KernelModel(
            spec,
            files,
            load_format,
            settings.quantization,
            group,
            settings.seed,
            device,
            graphs,
            settings.batch_invariant,
        )
    if isinstance(files, GGUFModel):
        raise SettingsError(
            f"--backend transformers reads folders, and {files.path.name} is a GGUF file, which our own kernels "
            "compute; leave --backend out."
        )
    try:
        from inflight.execution.transformers import load
    except ImportError as error:
        raise SettingsError(
            f"--backend transformers needs torch and transformers ({error}); install them: "
            f"{pip_install('transformers')}."
        ) from None
    return load(files, settings.dtype, settings.load_format == "dummy", settings.seed, device)


def held_spec(spec: ModelSpec, settings: EngineSettings) -> ModelSpec:
    """Return the shape of a model as it is stored: without its quantization where its matrices become plain numbers.

    Raises:
        SettingsError: they are plain already.
    """
    if load_format_of(settings) != "dequantize":
        return spec
    if spec.weight_format is None:
        raise SettingsError(
            "--load-format dequantize is for quantized matrices, and those of this one are plain; leave it out."
        )
    return replace(spec, weight_format=None)


def _token_ids(text: TextFiles, answers: tuple[str, str]) -> tuple[int, int]:
    """Return the token ids of answers of one token each. Raises SettingsError for longer ones."""
    (tokenizer, _), found = text.load(), []
    for answer in answers:
        token_ids = tokenizer.encode(answer, add_special_tokens=False)
        if len(token_ids) != 1:
            raise SettingsError(
                f"--score-tokens names {answer!r}, which is {len(token_ids)} tokens of this model; a score is the "
                "probability of one next token: name answers of one token each."
            )
        found += token_ids
    return found[0], found[1]
