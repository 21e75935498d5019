"""Which device computes: what this machine has, what was asked for, and the sentences where that is not to be had.

Importing this does not import PyTorch, which takes a second: only where a driver is found, or a GPU is asked for, is it
asked.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inflight.execution.backends.protocol import DeviceMemory
from inflight.extras import pip_install

if TYPE_CHECKING:
    import torch

_LOADED = "proc/driver/nvidia/version"
_DRIVERS = (_LOADED, "dev/nvidiactl", "dev/dxg", "dev/kfd")  # the last one is AMD's
INSTALL = f"install it: {pip_install('gpu')}"


class DeviceError(ValueError):
    """A sentence: which device is not to be had, why, and what to do."""


class Chosen(NamedTuple):
    """name: "cpu", which is our kernels for it, or "cuda:0" and the like. reason: why this one."""

    name: str
    reason: str


def choose(asked: str, root: Path = Path("/")) -> Chosen:
    """Choose the device for auto, cpu, cuda or cuda:N. `root` stands in for the file system's root in tests. Raises
    DeviceError for a GPU that is asked for and cannot be used."""
    if asked == "cpu":
        return Chosen("cpu", "as set")
    if asked == "auto":
        if os.environ.get("INFLIGHT_ISA"):
            return Chosen("cpu", "INFLIGHT_ISA names what computes on it")
        if not has_driver(root):
            return Chosen("cpu", "no NVIDIA or AMD driver found")
        try:
            _check_shown(root)
            return Chosen(*_gpu("cuda", "a GPU is there"))
        except DeviceError as error:
            return Chosen("cpu", f"{str(error).rstrip('.')}; --device cpu does not look for one")
    if not re.fullmatch(r"cuda(:\d+)?", asked):
        raise DeviceError(f"--device is {asked!r}; known are auto, cpu, cuda and cuda:N, N the number of a GPU.")
    _check_shown(root)
    return _gpu(asked, "as set")


def check_ranks(first: str, ranks: int) -> None:
    """Raise DeviceError where there are not so many GPUs from the first one on."""
    number, count = int(first.partition(":")[2]), int(_cuda(first).device_count())
    if number + ranks > count:
        raise DeviceError(
            f"--tensor-parallel-size {ranks} takes GPUs {number} to {number + ranks - 1}, and PyTorch sees {count}, "
            "numbered from 0; take fewer, or look at CUDA_VISIBLE_DEVICES."
        )


def check_fp8(device: str, option: str) -> None:
    """option: that asks for it. Raises DeviceError for a GPU that does not multiply such numbers."""
    if not has_fp8(device):
        of = _cuda(device).get_device_properties(device)
        raise DeviceError(
            f"{option} fp8 takes a GPU that multiplies floats of 8 bits, from sm_89 on (L4, L40S, H100), and {of.name} "
            f"is {_architecture(of)}; take int8, which takes as much memory."
        )


def has_fp8(device: str | torch.device) -> bool:
    """Return whether a GPU multiplies floats of 8 bits of NVIDIA's format (some of AMD's have another)."""
    import torch

    return torch.version.hip is None and bool(torch.cuda.get_device_capability(device) >= (8, 9))


def gpu_name(device: str) -> str:
    """Return the vendor's name of a GPU. Raises DeviceError where there is none."""
    return str(_cuda(device).get_device_name(device))


def has_driver(root: Path = Path("/")) -> bool:
    return any((root / path).exists() for path in _DRIVERS)


def _check_shown(root: Path) -> None:
    """Raise DeviceError where NVIDIA's driver is loaded and its devices are hidden from this process."""
    if (root / _LOADED).exists() and not any((root / path).exists() for path in _DRIVERS if path != _LOADED):
        raise DeviceError(
            "NVIDIA's driver is loaded, but /dev/nvidiactl is not there: what runs this process hides it; a systemd "
            "unit needs PrivateDevices=no and DeviceAllow=char-nvidia* rw, a container --gpus all."
        )


def gpu_memory(device: torch.device | str) -> DeviceMemory:
    """Return a GPU's memory. PyTorch's cache counts as free. CUDA's own memory (a context, the code of kernels) is
    neither free nor held."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    held = int(torch.cuda.memory_allocated(device))
    return DeviceMemory(int(total), int(free) + int(torch.cuda.memory_reserved(device)) - held, held)


def gpu_peak_bytes(device: torch.device, run: Callable[[], None]) -> int:
    """Return PyTorch's peak of allocated bytes in `run`, beside those before; partly used pieces count whole."""
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    held = int(torch.cuda.memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run()
        torch.cuda.synchronize(device)
        return max(0, int(torch.cuda.max_memory_reserved(device)) - held)
    finally:
        torch.cuda.empty_cache()


def first_line(error: Exception) -> str:
    """Return the kind of error and its first line; the lines behind are advice for authors of kernels."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0][:300]}"


def _gpu(asked: str, reason: str) -> Chosen:
    cuda = _cuda(asked)
    number, count = int(asked.partition(":")[2] or 0), int(cuda.device_count())
    if number >= count:
        raise DeviceError(
            f"--device {asked} is not there: PyTorch sees {count} GPU{'' if count == 1 else 's'}, numbered from 0; "
            "take another number, or look at CUDA_VISIBLE_DEVICES."
        )
    of = cuda.get_device_properties(number)
    return Chosen(f"cuda:{number}", f"{reason}: {of.name}, {of.total_memory / 2**30:.0f} GiB, {_architecture(of)}")


def _architecture(of: Any) -> str:
    import torch

    if torch.version.hip is None:
        return f"sm_{of.major}{of.minor}"
    return f"{of.gcnArchName}, by ROCm, on which this was never tried"


def _runtime(of: Any) -> str:
    return f"CUDA {of.cuda}" if of.hip is None else f"ROCm {of.hip} (rocm-smi, there)"


def _cuda(asked: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise DeviceError(f"--device {asked} needs PyTorch, which is not here ({error}); {INSTALL}.") from None
    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(
            f"--device {asked} needs a PyTorch with CUDA, and {torch.__version__} is for CPUs; uninstall torch, and "
            f"then {INSTALL} from PyPI, whose wheels have it."
        )
    if not torch.cuda.is_available():
        raise DeviceError(
            f"--device {asked}: PyTorch {torch.__version__} finds no GPU that it can use; nvidia-smi shows whether the "
            f"driver runs, and whether it is new enough for {_runtime(torch.version)}."
        )
    if importlib.util.find_spec("triton") is None:
        raise DeviceError(f"--device {asked} needs Triton, which compiles our kernels and is not here; {INSTALL}.")
    return torch.cuda
