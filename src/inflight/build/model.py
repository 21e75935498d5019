"""Find a model's files and what computes it: our kernels, or the modules of `transformers`."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from inflight.build.limits import graph_limits
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.execution.checkpoints.hub import resolve_model
from inflight.execution.checkpoints.packaged.catalogue import is_dequantized
from inflight.execution.computing import ComputedModel, KernelModel, LoadFormat
from inflight.execution.graphs import NO_GRAPHS
from inflight.extras import pip_install
from inflight.models.gguf.gguf_model import GGUFModel, gguf_at
from inflight.models.pooler import by_next_token, with_pooling
from inflight.models.registry import family_at, read_folder
from inflight.models.spec import ModelSpec
from inflight.text import ChatTemplate, Tokenizer

BUILT_IN = Path(__file__).parents[1] / "builtin_model"


def model_folder(settings: EngineSettings) -> Path:
    return BUILT_IN if settings.model is None else resolve_model(settings.model, settings.revision)


def load_format_of(settings: EngineSettings) -> LoadFormat:
    """Return how the model's files are read: as set, or as the catalogue has it for a model that is named there."""
    return "dequantize" if settings.load_format == "auto" and is_dequantized(settings.model) else settings.load_format


def has_chat_template(settings: EngineSettings) -> bool:
    """Return whether the model that the settings name has a chat template; reads no weights."""
    folder = model_folder(settings)
    return ChatTemplate.load(gguf_at(folder) or folder).is_available


def computed_model(files: Path | GGUFModel, settings: EngineSettings, device: str) -> ComputedModel:
    if settings.backend == "auto":
        family = None if settings.family is None else family_at(settings.family)
        spec = read_folder(files, to_run=True, family=family)
        if settings.pooling != "auto":
            spec = with_pooling(spec, settings.pooling)
        if settings.score_tokens is not None:
            spec = by_next_token(spec, settings.score_tokens, _token_ids(files, settings.score_tokens))
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


def _token_ids(files: Path | GGUFModel, answers: tuple[str, str]) -> tuple[int, int]:
    """Return the token ids of answers of one token each. Raises SettingsError for longer ones."""
    tokenizer, found = Tokenizer.load(files), []
    for answer in answers:
        token_ids = tokenizer.encode(answer, add_special_tokens=False)
        if len(token_ids) != 1:
            raise SettingsError(
                f"--score-tokens names {answer!r}, which is {len(token_ids)} tokens of this model; a score is the "
                "probability of one next token: name answers of one token each."
            )
        found += token_ids
    return found[0], found[1]
