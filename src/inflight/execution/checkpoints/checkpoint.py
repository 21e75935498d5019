"""Read a model's weights from a folder of safetensors or a GGUF file, by tensor name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from inflight.execution.backends.matrices import Matrix, Rows
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.execution.checkpoints.safetensors_file import SafetensorsFile, Tensors
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.gguf_model import GGUFModel, is_gguf
from inflight.models.registry import read_json
from inflight.models.spec import WeightFormat
from inflight.models.weight_format import refuse_unreadable, weight_format

if TYPE_CHECKING:
    from inflight.execution.packer import TensorSource

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_LONGEST_NAME = 255  # bytes of a file name, by every file system there is
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint:
    """The tensors of one folder, by the names that they have where nothing is quantized. Views are read-only; what is
    plain is not copied."""

    def __init__(self, folder: str | Path, keep_fp8: bool = False, dequantizes: bool = False) -> None:
        """Open every shard, check its header, and read from config.json how matrices are quantized.

        Args:
            folder: Of the model.
            keep_fp8: Return matrices of floats of 8 bits so, not as int8, where each output has one scale.
            dequantizes: Return all matrices as plain numbers (`--load-format dequantize`). Kernels round what meets an
                int8 or int4 matrix to 8 bits, with one scale for each 32 inputs: little beside most models' own error,
                but the smallest models have answers that hang on less.

        Raises:
            ModelError: A file is missing, pickled or damaged, or the quantization is not read.
        """
        self.folder, self._keep_fp8, self._dequantizes = Path(folder), keep_fp8, dequantizes
        if not self.folder.is_dir():
            raise ModelError(f"{self.folder} is no folder, so it holds no weights; give a Hugging Face model folder.")
        if (self.folder / _INDEX).is_file():
            files = self._open_shards()
        elif (self.folder / _SINGLE).is_file():
            file = SafetensorsFile(self.folder / _SINGLE)
            files = dict.fromkeys(file.entries, file)
        else:
            raise ModelError(_why_no_weights(self.folder))
        self._tensors = Tensors(self.folder, files)
        from inflight.execution.checkpoints.quantized import Quantized  # here, as a GGUF file needs none of it

        self._quantized = Quantized(self._tensors, _format_of(self.folder))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._quantized

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Return [shape] of float32, float16 or uint16 (bf16): a view, or new float32 numbers of what is quantized.
        Raises ModelError where name or shape do not fit."""
        if name not in self._quantized:
            return self._tensors.plain(name, shape)
        if self._quantized.is_stack(name):
            return self._quantized.stack(name, shape)
        return self._quantized.codes(name, shape).numbers()

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        """Return the rows of `tensor` in one piece, since plain rows are views of the file and take no memory."""
        return (self.tensor(name, shape),)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Return a matrix [outputs, inputs] as it is stored: the numbers of `tensor`, or quantized; 8 bits whose scales
        are not one for each output are rounded once more. Raises ModelError."""
        if name not in self._quantized or self._dequantizes:
            return self.tensor(name, shape)
        return self._quantized.codes(name, shape).matrix(self._keep_fp8)

    def whole_numbers(self, name: str, shape: Sequence[int]) -> Array:
        """Return int64 of this shape. Errors as in `tensor`."""
        return self._tensors.whole_numbers(name, shape)

    def release(self, name: str) -> None:
        """Release the memory that reading a tensor took. Its views stay valid."""
        for part in self._quantized.parts(name):
            self._tensors.release(part)

    def _open_shards(self) -> dict[str, SafetensorsFile]:
        path = self.folder / _INDEX
        shard_of = read_json(path).get("weight_map")
        if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
            raise ModelError(f"{path} has no weight_map of tensor names to files; download it again.")
        shards = sorted(set(shard_of.values()))
        outside = [shard for shard in shards if not _is_file_name(shard)]
        if outside:
            raise ModelError(f"{path} names {shown(outside[0])}, which is not a file of this folder; it is refused.")
        missing = [shard for shard in shards if not (self.folder / shard).is_file()]
        if missing:
            raise ModelError(
                f"{self.folder} lacks {len(missing)} of its {len(shards)} weight files: {', '.join(missing[:3])}"
                f"{', …' if len(missing) > 3 else ''}; download them again."
            )
        files = {shard: SafetensorsFile(self.folder / shard) for shard in shards}
        for name, shard in shard_of.items():
            if name not in files[shard]:
                raise ModelError(f"{path} places tensor {shown(name)} in {shard}, which lacks it; download both again.")
        return {name: files[shard] for name, shard in shard_of.items()}


def _format_of(folder: Path) -> WeightFormat | None:
    """Read the quantization from config.json, of a model that sees images too from its text part first; None: it has
    none."""
    if not (folder / _CONFIG).is_file():
        return None
    data = read_json(folder / _CONFIG)
    text = data.get("text_config")
    format = (weight_format(text) if isinstance(text, dict) else None) or weight_format(data)
    if format is not None:
        refuse_unreadable(format)
    return format


def _is_file_name(name: str) -> bool:
    """Return whether a file of this folder may have this name: no path, no half characters, and no more than names may
    have."""
    return (
        Path(name).name == name
        and name.isprintable()
        and name not in ("", "..")
        and len(name.encode()) <= _LONGEST_NAME
    )


def _why_no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} holds its weights only as {pickled[0]}, a pickle, which can run code when it is opened and is "
            "refused. Convert it where you trust it: load it with transformers and call "
            "save_pretrained(folder, safe_serialization=True)."
        )
    others = sorted(path.name for pattern in ("*.safetensors", "*.gguf") for path in folder.glob(pattern))
    found = f" (it holds {', '.join(others[:3])})" if others else ""
    return (
        f"{folder} has no weights{found}: expected is {_SINGLE} or {_INDEX}. Download the complete model, or use "
        "--load-format dummy for random weights."
    )


def open_checkpoint(
    model: Path | GGUFModel, keep_fp8: bool = False, dequantizes: bool = False
) -> Checkpoint | GGUFCheckpoint:
    """Open a folder or a GGUF file, which may be open already. Others as of `Checkpoint`. Raises ModelError."""
    if isinstance(model, GGUFModel) or is_gguf(model):
        return GGUFCheckpoint(model, dequantizes)
    return Checkpoint(model, keep_fp8, dequantizes)


class ModuleTensors:
    """Tensors of a folder's modules beside the model's own: `2_Dense/linear.weight` is `linear.weight` of 2_Dense."""

    def __init__(self, model: TensorSource, folder: Path) -> None:
        """Join a model's tensors, whose names have no module, and its modules' folders."""
        self._model = model
        self._module = lru_cache(lambda name: Checkpoint(folder / name))

    def __contains__(self, name: str) -> bool:
        source, own = self._source(name)
        return own in source

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        source, own = self._source(name)
        return source.tensor(own, shape)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        source, own = self._source(name)
        return source.matrix(own, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Rows]:
        source, own = self._source(name)
        return source.pieces(own, shape)

    def release(self, name: str) -> None:
        source, own = self._source(name)
        source.release(own)

    def _source(self, name: str) -> tuple[TensorSource, str]:
        module, slash, own = name.rpartition("/")
        return (self._module(module), own) if slash else (self._model, name)
