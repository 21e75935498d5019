"""GPUs by name and from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.core.types.features import Features
from inflight.models.known import known_model
from inflight.planning.machine import Hardware
from inflight.simulate.efficiency import CPU, efficiencies, has_own_spread, measured_family, read_shares
from inflight.simulate.hardware import _EXAMPLES, HardwareError, data_sheets, find_gpu, read_hardware_file

# tokens at which weights in bf16 are reused often enough, from the data sheets' peaks and bandwidths
RIDGES = {"a100-80": 153, "h100": 295, "h200": 206, "l40s": 419, "l4": 403}


@pytest.mark.parametrize(("name", "tokens"), RIDGES.items())
def test_ridges_follow_from_the_data_sheets(name: str, tokens: int) -> None:
    assert find_gpu(name).ridge_tokens() == pytest.approx(tokens, abs=1)


def test_every_figure_has_its_provenance_and_rates_are_dense() -> None:
    for gpu in data_sheets().gpus.values():
        assert gpu.provenance
        assert gpu.fp8_tflops is None or gpu.fp8_tflops < 2.2 * gpu.bf16_tflops, "sparse figures are twice as large"
        assert gpu.price_per_hour is None or "2026" in gpu.price_source


WRITTEN = {
    "a100-80": ("A100", "a100_80", "NVIDIA A100 80GB", "A100 80 GB", "NVIDIA A100-SXM4-80GB", "a100-sxm"),
    "a100-80-pcie": ("NVIDIA A100 80GB PCIe", "A100-PCIE"),
    "a100-40": ("NVIDIA A100-SXM4-40GB",),
    "a100-40-pcie": ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    "h100": ("H100-SXM5", "NVIDIA H100 80GB HBM3", "h100-80gb"),
    "h100-pcie": ("NVIDIA H100 PCIe",),
    "h100-nvl": ("NVIDIA H100 NVL",),
    "h200": ("NVIDIA H200", "H200 SXM 141GB"),
    "h20": ("NVIDIA H20", "H20-96GB"),
    "gh200": ("NVIDIA GH200 480GB",),
    "b200": ("NVIDIA B200", "B200 180GB"),
    "t4": ("Tesla T4", "T4 16GB"),
    "v100-32": ("Tesla V100-SXM2-32GB", "V100"),
    "l40": ("NVIDIA L40",),
    "rtx-4090": ("RTX4090", "4090", "NVIDIA GeForce RTX 4090", "rtx_4090", "RTX 4090 24GB"),
    "rtx-5070-ti": ("NVIDIA GeForce RTX 5070 Ti", "5070 Ti"),
    "rtx-3060-12": ("NVIDIA GeForce RTX 3060", "RTX 3060 12GB"),
    "rtx-4060-ti-16": ("RTX 4060 Ti 16GB",),
    "rtx-a6000": ("NVIDIA RTX A6000", "A6000"),
    "rtx-6000-ada": ("NVIDIA RTX 6000 Ada Generation",),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    "gb10": ("NVIDIA GB10", "DGX Spark"),
    "mi300x": (
        "AMD Instinct MI300X",
        "AMD Instinct MI300X OAM",
        "AMD_Instinct_MI300X_VF",
        "MI300X-192GB",
        "gfx942:sramecc+:xnack-",
    ),
    "mi325x": ("AMD Instinct MI325X",),
    "rtx-pro-6000-max-q": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    "rtx-4060-laptop": ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop"),
    "rtx-4070-ti-super": ("NVIDIA GeForce RTX 4070 Ti SUPER", "4070 Ti Super"),
    "rtx-3080-10": ("NVIDIA GeForce RTX 3080",),
    "h200-nvl": ("NVIDIA H200 NVL",),
    "b300": ("NVIDIA B300 SXM6 AC",),
    "mi350x": ("AMD Instinct MI350X",),
    "rx-7900-xtx": ("AMD Radeon RX 7900 XTX", "gfx1100"),
    "m2-ultra": ("Apple M2 Ultra",),
    "xeon-8480": ("Intel(R) Xeon(R) Platinum 8480+",),
    "strix-halo": ("AMD Radeon 8060S", "Ryzen AI Max+ 395", "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "gfx1151"),
    "m4-max": ("Apple M4 Max", "M4 Max 128GB", "MacBook Pro M4 Max"),
    "epyc-9654": ("AMD EPYC 9654 96-Core Processor", "EPYC9654"),
    "xeon-8592": ("Intel(R) Xeon(R) Platinum 8592+", "xeon-8592+"),
}


@pytest.mark.parametrize(("name", "written"), [(name, one) for name, all_of in WRITTEN.items() for one in all_of])
def test_names_are_taken_as_people_and_drivers_write_them(name: str, written: str) -> None:
    assert find_gpu(written) is data_sheets().gpus[name]


MACHINES = {
    "p5.48xlarge": "h100",
    "p5en.48xlarge": "h200",
    "g6e.12xlarge": "l40s",
    "a3-highgpu-8g": "h100",
    "a2-ultragpu-1g": "a100-80",
    "Standard_ND96isr_H100_v5": "h100",
    "Standard_NC40ads_H100_v5": "h100-nvl",
    "BM.GPU.MI300X.8": "mi300x",
}


@pytest.mark.parametrize(("machine", "gpu"), MACHINES.items())
def test_a_machine_of_a_cloud_is_known_by_its_gpu(machine: str, gpu: str) -> None:
    assert find_gpu(machine).name == gpu


# Others of the same generation: a card of another size, and those that a name is longer than.
UNKNOWN = {
    "H100-XYZ": "h100",
    "NVIDIA H100 64GB": "h100",
    "8xH100": "h100",
    "RTX 2060": "rtx-5060-8, rtx-4060-8 or rtx-5090",
    "V100-SXM2-24GB": "v100-32",
    "RTX 4000 SFF Ada Generation": "rtx-4000-ada",
    "NVIDIA GeForce RTX 3060 Laptop GPU": "rtx-3060-12",
    "M4 Max 64GB": "m4-max",
    "MI300A": "mi300x",
    "EPYC 9664": "epyc-9654",
}


@pytest.mark.parametrize(("written", "nearest"), UNKNOWN.items())
def test_an_unknown_name_is_met_with_the_nearest_of_its_kind(written: str, nearest: str) -> None:
    with pytest.raises(HardwareError) as caught:
        find_gpu(written)
    sentence = str(caught.value)
    assert f"Did you mean {nearest}" in sentence and "Known are" not in sentence


@pytest.mark.parametrize("written", ["TPU v5e", "Gaudi 3", "Trainium2", ""])
def test_a_kind_that_is_not_known_is_met_with_no_other_one(written: str) -> None:
    with pytest.raises(HardwareError) as caught:
        find_gpu(written)
    assert "Did you mean" not in str(caught.value)


def test_rates_are_dense_and_fall_in_halves() -> None:
    """A sparse figure in one row would be twice its neighbour's ratio."""
    for gpu in data_sheets().gpus.values():
        assert gpu.fp4_tflops is None or gpu.fp8_tflops is not None
        assert gpu.int8_tops is None or gpu.device == "cpu" or gpu.int8_tops < 4.4 * gpu.bf16_tflops
        assert gpu.fp4_tflops is None or gpu.fp4_tflops < 8.8 * gpu.bf16_tflops


def test_an_unknown_gpu_is_met_with_examples_and_how_to_add_one() -> None:
    with pytest.raises(HardwareError) as caught:
        find_gpu("Core i9-14900K")
    sentence = str(caught.value)
    assert ", such as l4, l40s, a100-80, " in sentence and "`inflight calibrate`" in sentence and len(sentence) < 600
    assert all(find_gpu(one).name == one for one in _EXAMPLES)
    assert "--hardware-file" in sentence and "[gpus.NAME]" in sentence


def test_what_has_no_units_is_computed_in_bf16() -> None:
    a100, h100 = find_gpu("a100-80"), find_gpu("h100")
    assert not a100.computes("fp8") and a100.flops_per_s("fp8") == a100.flops_per_s("bf16")
    assert h100.computes("fp8") and h100.flops_per_s("fp8") == pytest.approx(2 * h100.flops_per_s("bf16"), rel=0.01)
    for slow in (find_gpu("b300"), find_gpu("gb300")):  # 150 TOPS in int8, where bf16 has 2,250 TFLOP/s
        assert not slow.computes("int8") and slow.flops_per_s("int8") == slow.flops_per_s("bf16")


GOOD = '[gpus.x]\nmemory-gb = 1\nbandwidth-gb-per-s = 1\nbf16-tflops = 1\nprovenance = "a sheet"\n'
Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        (tmp_path / "mine.toml").write_text(text)
        return tmp_path / "mine.toml"

    return write


def test_a_file_adds_gpus_and_wins_over_the_built_in(written: Written) -> None:
    gpus = read_hardware_file(
        written(
            '[gpus.Mine]\nmemory-gb = 48\nbandwidth-gb-per-s = 900\nbf16-tflops = 200\nlink = "NVLink"\n'
            "[gpus.h100]\nmemory-gb = 94\nbandwidth-gb-per-s = 3900\nbf16-tflops = 989\n"
        )
    )
    assert find_gpu("mine", gpus).memory_bytes == 48e9
    assert find_gpu("h100", gpus).memory_gb == 94
    assert find_gpu("mine", gpus).provenance == "as mine.toml says"


def test_a_file_may_replace_a_price_or_the_power_alone(written: Written) -> None:
    built_in = find_gpu("h200")
    (mine,) = read_hardware_file(written("[gpus.H200]\nprice-per-hour = 1.5\nwatts = 650\npue = 1.2\n"))
    assert (mine.price_per_hour, mine.watts, mine.pue) == (1.5, 650, 1.2)
    assert mine.price_source == "as mine.toml says", "not the built-in price's"
    assert (
        replace(
            mine,
            price_per_hour=built_in.price_per_hour,
            price_source=built_in.price_source,
            watts=built_in.watts,
            pue=built_in.pue,
        )
        == built_in
    )


@pytest.mark.parametrize("name", ["a100", "NVIDIA A100-SXM", "a100_80"])
def test_a_file_may_spell_a_name_as_options_do(written: Written, name: str) -> None:
    gpus = read_hardware_file(written(f'[gpus."{name}"]\nprice-per-hour = 1.5\n'))
    assert find_gpu(name, gpus).price_per_hour == find_gpu("a100-80", gpus).price_per_hour == 1.5
    own = read_hardware_file(written(GOOD.replace("[gpus.x]", '[gpus."NVIDIA H200"]') + "node-gpus = 4.0\n"))
    assert find_gpu("NVIDIA H200", own).memory_gb == 1 and repr(find_gpu("h200", own).node_gpus) == "4"


ASKED_FOR = [
    *("gb200", "gb300", "b200", "b300", "h200", "h100", "mi300x", "mi355x", "l40s", "rtx-pro-6000", "rtx-5090"),
    *("rtx-4090", "rtx-3090", "gb10", "epyc-9654", "epyc-9755", "xeon-6980p", "xeon-8592", "m3-ultra"),
]


def test_todays_hardware_is_known_with_its_power_and_its_domain() -> None:
    gpus = {name: find_gpu(name) for name in ASKED_FOR}
    assert all(gpu.watts for gpu in gpus.values())
    assert [name for name, gpu in gpus.items() if gpu.domain == 72] == ["gb200", "gb300"]
    assert gpus["gb200"].node_gpus == 4
    assert [name for name, gpu in gpus.items() if gpu.device == "cpu"] == ASKED_FOR[-5:]
    assert find_gpu("NVIDIA GeForce RTX 4090") == gpus["rtx-4090"] and find_gpu("DGX Spark") == gpus["gb10"]


def test_what_clouds_rent_out_has_a_price() -> None:
    for name in ("b300", "gb300", "mi355x", "mi325x", "h100-pcie", "a100-40", "gb10", "epyc-9654", "t4", "l40"):
        assert find_gpu(name).price_per_hour


def test_a_processor_of_a_file_has_the_shares_of_matrix_units_only_under_a_name_that_is_known_to_have_them(
    written: Written,
) -> None:
    kernels = {
        name: read_hardware_file(written(GOOD.replace("[gpus.x]", f'[gpus."{name}"]\ndevice = "cpu"')))[0].kernels
        for name in ("xeon-e5-2690", "m5.metal", "apple", "xeon-6980p", "m5-pro", "m2")
    }
    assert [name for name, one in kernels.items() if one == CPU] == ["xeon-e5-2690", "m5.metal", "apple"]
    assert efficiencies(kernels["xeon-e5-2690"]).linear_compute > 5 * efficiencies(kernels["xeon-6980p"]).linear_compute
    assert measured_family("m2") == measured_family("m3-ultra") == "apple" and measured_family("m5.metal") is None


def test_chips_with_other_links_or_fewer_units_have_the_shares_of_the_whole_one() -> None:
    assert measured_family("h800") == "h100" and measured_family("a800-80") == "a100"
    assert measured_family("l40") == "l40s"
    for cut, whole in (("h20", "h100"), ("l20", "l40s")):
        assert efficiencies(cut) == efficiencies(whole)
        assert not has_own_spread(cut), "nothing was measured of it"


def test_shares_that_refer_to_no_table_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shares.toml"
    path.write_text('[else]\n[m9]\nothers = "cpus"\n')
    with pytest.raises(ValueError, match=r"shares\.toml, m9: others is 'cpus'; name a table"):
        read_shares(path)


def test_four_bits_are_computed_where_there_are_units() -> None:
    b200, h200, epyc = find_gpu("b200"), find_gpu("h200"), find_gpu("epyc-9654")
    assert b200.flops_per_s("nvfp4") == 2 * b200.flops_per_s("fp8") == 2 * b200.flops_per_s("mxfp4")
    assert h200.flops_per_s("nvfp4") == h200.flops_per_s("mxfp4") == h200.flops_per_s("bf16")
    assert epyc.flops_per_s("int4") == epyc.flops_per_s("int8")


# Tokens per second of one stream of Qwen3-30B-A3B in llama.cpp: an EPYC 4344P (philippe-anel.fr, 2025-08-10; eight
# cores, two channels of DDR5-5200) and a Core i7-8700 (inventivehq.com; six cores, two of DDR4-2666).
PROCESSORS = [("int8", 83.2, 1.95, 15.1), ("int4", 83.2, 1.95, 24.0), ("int4", 41.6, 0.4, 10.6)]


@pytest.mark.parametrize(("weights", "bandwidth", "tflops", "published"), PROCESSORS)
def test_published_speeds_on_processors_come_out(
    weights: str, bandwidth: float, tflops: float, published: float
) -> None:
    box = replace(find_gpu("epyc-9654"), bandwidth_gb_per_s=bandwidth, bf16_tflops=tflops, int8_tops=2 * tflops)
    machine = Hardware(model=known_model("qwen3-30b-a3b"), gpu=box, weights=weights).machine(1, 500)  # type: ignore[arg-type]
    assert (machine.device, machine.depth) == ("cpu", 1)
    assert 1 / machine.model.seconds(Features(1, 1, 1, 500, 0.0)) == pytest.approx(published, rel=0.2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds 0 GPUs; to add one, describe it"),
        ("[gpus.x", "cannot be read"),
        ("gpus = 3\n", "holds"),
        ("[gpus]\nx = 1\n", "GPU 'x' is no table"),
        ("[gpus.x]\nmemory-gb = 1\n", "lacks bandwidth-gb-per-s, without which no step time can be computed."),
        ("[gpus.x]\nmemory = 1\n", "has the key 'memory'; known are bandwidth-gb-per-s, "),
        ("[gpus.x]\nmemory-gb = -1\n", "memory-gb is -1; give a number above 0."),
        ("[gpus.x]\nmemory-gb = nan\n", "memory-gb is nan; give a number above 0."),
        ("[gpus.x]\nlink = 1\n", "link is 1; give a text."),
        (GOOD + "node-gpus = 1.5\n", "node-gpus is 1.5; give a whole number."),
        (GOOD + "domain-gpus = 2.5\n", "domain-gpus is 2.5; give a whole number."),
        (GOOD + 'device = "tpu"\n', "device is 'tpu'; give one of cuda, cpu."),
        (GOOD + "pue = 0.9\n", "pue is 0.9, a building's power over its machines'; give 1 or more."),
        (GOOD + "watts = 300\nidle-watts = 400\n", "idle-watts is 400, above watts (300)"),
        ("[gpus.h200]\nidle-watts = 900\n", "idle-watts is 900, above watts (700)"),
        ("[gpus.h200]\nprice = 3\n", "has the key 'price'; known are"),
    ],
)
def test_a_wrong_file_is_refused(written: Written, text: str, sentence: str) -> None:
    with pytest.raises(HardwareError) as caught:
        read_hardware_file(written(text))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD, "hold the tables gpus, where gpus and aliases are needed; install inflight again."),
        (GOOD + "[cpus]\n[aliases]\n", "hold the tables gpus, cpus, aliases, where"),
        (GOOD + '[aliases]\nxx = "y"\n', "alias 'xx' is 'y'; give one of x."),
        (GOOD.replace('"a sheet"', '""') + "[aliases]\n", "GPU 'x' lacks provenance; name the source of its figures."),
        (
            GOOD + "price-per-hour = 1\n[aliases]\n",
            "GPU 'x' lacks price-source; name where and when its price was seen.",
        ),
        (
            GOOD.replace("memory-gb = 1", "memory-gb = 0") + "[aliases]\n",
            "GPU 'x': memory-gb is 0; give a number above 0.",
        ),
        ("[gpus", "cannot be read"),
    ],
)
def test_damaged_data_sheets_name_the_entry_and_the_field(written: Written, text: str, sentence: str) -> None:
    with pytest.raises(HardwareError) as caught:
        data_sheets(path := written(text))
    assert str(path) in str(caught.value) and sentence in str(caught.value)


def test_aliases_are_data_too(written: Written) -> None:
    path = written(GOOD + '[aliases]\nxx = "x"\n')
    sheets = data_sheets(path)
    assert sheets.aliases == {"xx": "x"} and sheets.gpus["x"].memory_bytes == 1e9
    assert data_sheets(path) is sheets, "they are read once"


def test_machines_that_other_engines_compute_on_are_marked() -> None:
    assert find_gpu("m3-ultra").served_by == "llama.cpp and MLX" and not find_gpu("h100").served_by
    assert all(gpu.device == "cpu" for gpu in data_sheets().gpus.values() if gpu.served_by)
