"""Make the probe of output lengths that `--predictor probe` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.execution.checkpoints.files_digest import computed_files
from inflight.execution.computing import ComputedModel, KernelModel
from inflight.execution.model import Model
from inflight.execution.passes import Captures, PassDecoder
from inflight.private_files import check_replaceable

if TYPE_CHECKING:
    from inflight.execution.length_probe.step_probe import StepProbe


def check_probe_file(scheduling: SchedulingSettings) -> None:
    """Raise SettingsError where the probe's file could not be saved later."""
    if scheduling.probe_file is None:
        return
    path = Path(scheduling.probe_file)
    try:
        check_replaceable(path)
    except OSError as error:
        raise SettingsError(
            f"--probe-file {path} cannot be written ({error.strerror or error}); give a file in a folder that exists "
            "and that this user may write to."
        ) from None


def make_probe(
    computed: ComputedModel, decoder: PassDecoder, max_rows: int, scheduling: SchedulingSettings
) -> StepProbe | None:
    """Make the probe; None where none is wanted, and in all processes of a model but the first.

    Raises:
        SettingsError: The model is not computed by our kernels, or draws no tokens.
    """
    if not scheduling.probes_lengths:
        return None
    of_model = decoder.uncaptured if isinstance(decoder, Captures) else decoder
    if computed.spec.head is None:
        raise SettingsError(f"--predictor probe predicts output lengths, and {computed.spec.name} generates no output.")
    if not isinstance(of_model, Model) or not isinstance(computed, KernelModel):
        raise SettingsError(
            "--predictor probe reads hidden states of models that our kernels compute; with --backend transformers "
            "take --predictor quantiles."
        )
    if computed.member is not None and computed.member.shard.rank:
        return None
    from inflight.execution.length_probe.probe_file import model_salt
    from inflight.execution.length_probe.step_probe import StepProbe

    files = computed_files(computed.files) if isinstance(computed.files, Path) else [computed.files.path]
    salt = model_salt(computed.spec.name, [] if computed.load_format == "dummy" else files)
    path = None if scheduling.probe_file is None else Path(scheduling.probe_file)
    (hidden,) = of_model.taps([len(of_model.weights.layers) // 2])
    return StepProbe(hidden, computed.spec.hidden_size, max_rows, salt, path)
