"""Files that other programs read, by those programs' own schemas and checks: Kubernetes, compose, containers, systemd,
forms of the repository's host. Each check is shown a file that is wrong, too.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from foreign.environments import Environment

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ENVIRONMENT = Environment("schemas", Path(__file__).with_name("schemas"))
PUBLISHED_BY_KUBERNETES = ("v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1")
# What a container's checker finds that is meant so: packages of Debian and of this checkout have the newest versions.
CONTAINERS = ("--failure-threshold", "warning", "--ignore", "DL3008", "--ignore", "DL3013")
foreign = [pytest.mark.foreign, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkers() -> Environment:
    return ENVIRONMENT.make()


def refused(checkers: Environment, program: str, *arguments: str) -> bool:
    try:
        checkers.run(program, *arguments)
    except AssertionError:
        return True
    return False


def kubernetes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every resource of a kind that Kubernetes itself has; of others' kinds the pods that they are to make."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            name = f"{path.relative_to(DEPLOY)}:{one.get('kind', '')}"
            if one.get("apiVersion") in PUBLISHED_BY_KUBERNETES:
                yield name, one
            elif "apiVersion" in one:
                for place, pod in enumerate(pods(one["spec"])):
                    made = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "made"}, "template": pod}
                    yield f"{name}:{place}", made


def pods(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "template" and "containers" in inner.get("spec", {}):
                yield inner
            else:
                yield from pods(inner)


RESOURCES = dict(kubernetes())


def test_there_are_resources_to_check() -> None:
    kinds = [one["kind"] for one in RESOURCES.values()]
    assert {"Deployment", "Service"} <= set(kinds) and kinds.count("PodTemplate") >= 2


class TestSchemas:
    pytestmark = foreign

    @pytest.mark.parametrize("name", RESOURCES)
    def test_kubernetes_takes_the_resource(self, checkers: Environment, name: str, tmp_path: Path) -> None:
        path = tmp_path / "resource.yaml"
        path.write_text(yaml.safe_dump(RESOURCES[name]))
        checkers.run("kubernetes-validate", "--strict", str(path))
        path.write_text(yaml.safe_dump({**RESOURCES[name], "unheard": {"of": 1}}))
        assert refused(checkers, "kubernetes-validate", "--strict", str(path))

    @pytest.mark.parametrize("path", sorted(DEPLOY.rglob("compose*.yaml")), ids=lambda one: one.name)
    def test_compose_takes_the_file(self, checkers: Environment, path: Path, tmp_path: Path) -> None:
        checkers.run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))
        wrong = tmp_path / "compose.yaml"
        wrong.write_text(path.read_text().replace("depends_on:", "depends_upon:"))
        assert refused(checkers, "check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(wrong))

    @pytest.mark.parametrize(
        "path", sorted(DEPLOY.rglob("Containerfile*")), ids=lambda one: str(one.relative_to(DEPLOY))
    )
    def test_the_checker_of_containers_finds_nothing(self, checkers: Environment, path: Path, tmp_path: Path) -> None:
        checkers.run("hadolint", *CONTAINERS, str(path))
        wrong = tmp_path / "Containerfile"
        wrong.write_text(path.read_text() + "\nRUN cd /tmp && sudo true\n")
        assert refused(checkers, "hadolint", *CONTAINERS, str(wrong))

    @pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda one: one.name)
    def test_forms_are_understood(self, checkers: Environment, path: Path, tmp_path: Path) -> None:
        schema = f"vendor.github-issue-{'config' if path.name == 'config.yml' else 'forms'}"
        checkers.run("check-jsonschema", "--builtin-schema", schema, str(path))
        wrong = tmp_path / path.name
        wrong.write_text(path.read_text() + "\nunheard: 1\n")
        assert refused(checkers, "check-jsonschema", "--builtin-schema", schema, str(wrong))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/inflight.service").read_text(encoding="utf-8")
    path = tmp_path / "inflight.service"
    for text, says in ((unit, ""), (unit.replace("ProtectSystem=", "ProtectSystems="), "ProtectSystems")):
        path.write_text(text.replace("/opt/inflight/bin/inflight", "/bin/true"))  # there is no server installed here
        ended = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
        reported = "\n".join(line for line in ended.stderr.splitlines() if str(path) in line)
        assert (says in reported) if says else not reported
