"""The files for KubeRay: inflight understands their options, and both name the same Ray and the same image."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from inflight.cli.serve import command

FOLDER = Path(__file__).parents[2] / "deploy/ray"
SERVICE = yaml.safe_load((FOLDER / "service.yaml").read_text(encoding="utf-8"))
[APPLICATION] = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]


def test_arguments_are_options_of_the_server() -> None:
    words = [word for name, value in APPLICATION["args"].items() for word in (f"--{name}", value)]
    assert all(isinstance(value, str) for value in APPLICATION["args"].values()), "as Ray hands them on"
    context = command.make_context("serve", words)
    assert (context.params["replicas"], context.params["max_replicas"]) == (2, 8)
    with pytest.raises(click.NoSuchOption):
        command.make_context("serve", ["--replica", "2", "--sizes", "3"])


def test_the_application_is_there() -> None:
    module, _, name = APPLICATION["import_path"].partition(":")
    path = Path(__file__).parents[2] / "src" / f"{module.replace('.', '/')}.py"
    assert f"def {name}(" in path.read_text(encoding="utf-8")
    import_module(module.rpartition(".")[0])


def test_there_is_one_ray_and_one_image() -> None:
    cluster = SERVICE["spec"]["rayClusterConfig"]
    image = re.search(r"rayproject/ray:([\d.]+)-py", (FOLDER / "Containerfile").read_text(encoding="utf-8"))
    tested = re.search(r"==([\d.]+)", (Path(__file__).parents[1] / "foreign/ray/requirements.txt").read_text())
    assert image is not None and tested is not None
    assert cluster["rayVersion"] == image[1] == tested[1]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {one["image"] for group in groups for one in group["template"]["spec"]["containers"]}
    assert images == {"inflight-ray"}


def test_every_replica_that_may_come_has_a_place() -> None:
    [workers] = SERVICE["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    places = int(workers["rayStartParams"]["num-cpus"])
    assert places * workers["replicas"] >= int(APPLICATION["args"]["replicas"])
    assert places * workers["maxReplicas"] >= int(APPLICATION["args"]["max-replicas"])
    [container] = workers["template"]["spec"]["containers"]
    assert places * int(APPLICATION["args"]["threads"]) <= int(container["resources"]["limits"]["cpu"])
