"""Fit the step model's formulas to kernels that NVIDIA's AISimulate has timed: where efficiency.toml's shares begin.

Its tables (Apache-2.0) come with the package. Run this with the Python of an environment that has it, and so pandas and
scipy, which this project needs nowhere else:

    PYTHONPATH=. /path/to/aisimulate/bin/python -m benchmarks.published.kernels

Each line has the kind of kernel, its number of timings, the median and the 90th percentile of the error, and the
parameters. Times of a kernel include its launch, `start`. What a GPU reaches for a second it does not reach for hours
(power), so that shares of matrices stay those of whole layers (Vidur).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Peak in bf16 and in fp8, bandwidth; a second's operations and bytes of data sheets
_GPUS = {
    "a100_sxm": (312e12, 312e12, 2.039e12),
    "h100_sxm": (989e12, 1979e12, 3.35e12),
    "h200_sxm": (989e12, 1979e12, 4.8e12),
    "l40s": (362e12, 733e12, 0.864e12),
    "b200_sxm": (2250e12, 4500e12, 7.7e12),
    "rtx_pro_6000_server": (500e12, 1000e12, 1.597e12),
}
_BYTES = {"nvfp4": 0.5625, "bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "w4a16_mxfp4": 0.53, "int4_wo": 0.56}
# Number and width of experts of which vLLM has a configuration of its kernel for an A100-SXM4-80GB (its folder
# fused_moe/configs); all others have one of small tiles
_TUNED = {"a100_sxm": {(8, 1792), (8, 2048), (8, 3584), (8, 4096), (8, 7168), (128, 192)}}
_LATER = ("0.31", "0.5.20", "rc23", "dev")  # versions with few timings
_SAMPLE = 3000  # timings that a fit takes
Limits = Mapping[str, tuple[float, float, float]]  # by parameter: beginning, least, most

_START = (2e-5, 1e-7, 2e-4)
_ATTENTION: Limits = {"start": _START, "tile": (200.0, 1.0, 5000.0), "share": (0.7, 0.05, 1.2)}
_RATES = {"memory": (0.8, 0.1, 1.5), "compute": (0.6, 0.02, 1.5)}
_EXPERTS: Limits = {"start": _START, **_RATES, "width": (50.0, 1.0, 3000.0)}
_MATRICES: Limits = {"start": _START, **_RATES, "half": (20.0, 1.0, 1000.0)}


def fit(name: str, limits: Limits, times: Any, model: Callable[[Sequence[Any]], Any]) -> str:
    """Return a line on the parameters with which a formula is nearest to timings, in logarithms, less to far ones."""
    numpy, optimize = importlib.import_module("numpy"), importlib.import_module("scipy.optimize")
    first, least, most = (numpy.log([one[index] for one in limits.values()]) for index in range(3))

    def modelled(_: Any, *logarithms: Any) -> Any:
        return numpy.log(model(numpy.exp(logarithms)))

    known = numpy.log(times)
    found, _ = optimize.curve_fit(modelled, times, known, first, bounds=(least, most), loss="soft_l1")
    far = numpy.abs(modelled(times, *found) - known)
    values = ", ".join(f"{key} {value:.3g}" for key, value in zip(limits, numpy.exp(found), strict=True))
    return f"{name}: {len(times)} timings, {numpy.median(far):.0%}, {numpy.quantile(far, 0.9):.0%}: {values}"


def columns(table: Any, names: str) -> list[Any]:
    """Return a sample of a table's columns and the seconds of its rows, last."""
    some = table.sample(min(len(table), _SAMPLE), random_state=0)
    return [*(some[name].to_numpy(float) for name in names.split()), some.latency.to_numpy() / 1e3]


def prompts(gpu: str, table: Any) -> str:
    """Attention of prompts: each query costs `tile` positions beside those it sees."""
    tokens = table.batch_size * table.isl
    table = table[(tokens >= 1024) & (tokens <= 16384) & (table.isl >= 128) & (table.num_heads >= 4)]
    batch, length, heads, width, window, times = columns(table, "batch_size isl num_heads head_dim window_size")
    seen = _windowed(length / 2, window)
    flops = 4 * heads * width * batch * length / _GPUS[gpu][0]
    return fit(f"{gpu} prompts", _ATTENTION, times, lambda of: of[0] + flops * (seen + of[1]) / of[2])


def decodes(gpu: str, table: Any) -> str:
    """Attention of decodes: each row costs `tile` positions beside those it reads."""
    table = table[(table.step >= 127) & (table.batch_size >= 4) & (table.num_key_value_heads <= 8)]
    batch, last, heads, width, window, times = columns(
        table, "batch_size step num_key_value_heads head_dim window_size"
    )
    seen = _windowed(last + 1, window)
    moved = 4 * heads * width * batch / _GPUS[gpu][2]
    return fit(f"{gpu} decodes", _ATTENTION, times, lambda of: of[0] + moved * (seen + of[1]) / of[2])


def _windowed(seen: Any, window: Any) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.where(window > 0, numpy.minimum(seen, window), seen)


def latent(gpu: str, precision: str, table: Any) -> str:
    """Decodes of latent attention with all 128 heads: the slower of reading and computing."""
    table = table[(table.step >= 1000) & (table.batch_size >= 32) & (table.num_heads == 128)]
    batch, last, times = columns(table, "batch_size step")
    flops = 2 * 128 * (576 + 512) * batch * (last + 1) / _GPUS[gpu][0]
    return fit(f"{gpu} latent {precision}", {"start": _START, "share": (0.6, 0.05, 2.0)}, times, _by_share(flops))


def states(gpu: str, table: Any) -> str:
    """Decodes of gated delta rule: each row's state is read and written in float32."""
    table = table[(table.phase == "generation") & table.kernel_source.str.contains("delta_rule")]
    batch, heads, times = columns(table[table.batch_size >= 32], "batch_size num_v_heads")
    moved = 2 * 4 * 128 * 128 * heads * batch / _GPUS[gpu][2]
    return fit(f"{gpu} states", {"start": _START, "share": (0.6, 0.05, 2.0)}, times, _by_share(moved))


def _by_share(seconds: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda of: of[0] + seconds / of[1]


def _peak(gpu: str, precision: str) -> float:
    """Return the operations per second of a data sheet; four bits have twice the rate of eight, where they have one."""
    return 2 * _GPUS[gpu][1] if precision == "nvfp4" else _GPUS[gpu]["fp8" in precision]


def experts(gpu: str, precision: str, tuned: bool, table: Any) -> str:
    """Mixtures: the touched experts are read, then computed, at half of the rate with 12 tokens or `width` wide."""
    skewed = table[table.distribution == "power_law_1.2"]
    table = skewed if len(skewed) else table
    names = "num_tokens hidden_size inter_size moe_tp_size topk num_experts"
    tokens, hidden, whole, degree, chosen, count, times = columns(table, names)
    width = whole / degree
    touched = count * (1 - (1 - chosen / count) ** tokens)
    elements, each = 3 * hidden * width, tokens * chosen / touched
    flops = 2 * tokens * chosen * elements / _peak(gpu, precision) * (1 + 12 / each)
    read, moved = touched * elements * _BYTES[precision] / _GPUS[gpu][2], 6 * tokens * chosen * hidden / _GPUS[gpu][2]

    def model(of: Sequence[Any]) -> Any:
        return of[0] + read / of[1] + flops * (1 + of[3] / width) / of[2] + moved

    return fit(f"{gpu} {'' if tuned else 'untuned '}experts {precision}", _EXPERTS, times, model)


def matrices(gpu: str, precision: str, table: Any) -> str:
    """Dense matrices: the slower of reading and computing, of which `half` tokens reach half of the rate."""
    rows, outputs, inputs, times = columns(table, "m n k")
    read = outputs * inputs * _BYTES[precision] / _GPUS[gpu][2]
    flops = 2 * rows * outputs * inputs / _peak(gpu, precision)
    moved = 2 * rows * (outputs + inputs) / _GPUS[gpu][2]

    def model(of: Sequence[Any]) -> Any:
        return of[0] + ((read / of[1]) ** 3 + (flops * (1 + of[3] / rows) / of[2]) ** 3) ** (1 / 3) + moved

    return fit(f"{gpu} matrices {precision}", _MATRICES, times, model)


def tables(folder: Path, gpu: str, kind: str, engine: str, file: str) -> Any:
    """Return the newest table of an engine's kernels with many timings; None where there is none."""
    found = sorted(folder.glob(f"{gpu}/{kind}/{engine}/*/{file}.parquet"))
    found = [path for path in found if not any(later in path.parent.name for later in _LATER)]
    if not found:
        return None
    table = importlib.import_module("pandas").read_parquet(found[-1])
    return table if "window_size" in table or kind != "attention" else table.assign(window_size=0)


def lines(folder: Path, gpu: str, engine: str) -> list[str]:
    """Return the lines of a GPU under an engine."""
    found = []
    for file, of in (("context_attention_perf", prompts), ("generation_attention_perf", decodes)):
        if (table := tables(folder, gpu, "attention", engine, file)) is not None:
            table = table[(table.kv_cache_dtype == "bfloat16") & table.head_dim.isin([64, 128])]
            found.append(of(gpu, table))
    if (table := tables(folder, gpu, "moe", engine, "moe_perf")) is not None:
        width = table.inter_size // table.moe_tp_size  # of others than multiples of 16 Triton loads numbers one by one
        table = table.assign(tuned=_is_tuned(gpu, engine, table.num_experts, width))
        table = table[(table.moe_ep_size == 1) & (width >= 96) & (width % 16 == 0) & (table.num_experts >= 8)]
        groups = table.groupby(["moe_dtype", "kernel_source", "tuned"])
        found += [experts(gpu, key[0], key[2], some) for key, some in groups if key[0] in _BYTES and len(some) > 40]
    if (table := tables(folder, gpu, "mla", engine, "generation_mla_perf")) is not None:
        found += [latent(gpu, precision, some) for precision, some in table.groupby("kv_cache_dtype")]
    if (table := tables(folder, gpu, "linear_attention", engine, "gdn_perf")) is not None:
        found.append(states(gpu, table))
    if (table := tables(folder, gpu, "gemm", engine, "gemm_perf")) is not None:
        table = table[table.n.between(1024, 32768) & table.k.between(1024, 32768) & (table.m <= 8192)]
        groups = table.groupby("gemm_dtype")
        found += [matrices(gpu, key, some) for key, some in groups if key in _BYTES and len(some) > 40]
    return found


def _is_tuned(gpu: str, engine: str, counts: Any, widths: Any) -> list[bool]:
    """Return for each number and width of experts whether their kernel is tuned."""
    tuned = _TUNED.get(gpu) if engine == "vllm" else None
    return [tuned is None or pair in tuned for pair in zip(counts, widths, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", default="vllm", choices=("vllm", "trtllm", "sglang"))
    parser.add_argument("--gpu", choices=tuple(_GPUS), help="one alone")
    arguments = parser.parse_args()
    folder = Path(str(importlib.import_module("aisimulate_core").__file__)).parent / "systems/data"
    for gpu in _GPUS if arguments.gpu is None else [arguments.gpu]:
        print(*lines(folder, gpu, arguments.engine), sep="\n", flush=True)


if __name__ == "__main__":
    main()
