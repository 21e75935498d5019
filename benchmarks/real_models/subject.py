"""A model under test: its file, its weights in bf16, the reference's answers, and the answers of engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.comparison import log_line
from benchmarks.real_models.agreement import agreement
from benchmarks.real_models.answers import Answers, Questions
from benchmarks.real_models.engines import REFERENCE, EngineFailed, Runner, Way
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE
from inflight.execution.checkpoints.packaged.model_cache import pull


@dataclass(frozen=True, slots=True)
class Examined:
    """Texts that a model is asked about, with the reference's answers. folder: the reference's weights in bf16, where
    they were written."""

    questions: Path
    reference: Answers
    folder: Path | None = None


class Subject:
    """A model of the catalogue. Its files are below `scratch`, and stay as long as that does."""

    def __init__(self, name: str, scratch: Path):
        self.name = name
        self.file = pull(CATALOGUE[name])
        self._scratch = scratch / name
        self._scratch.mkdir()

    def examine(
        self, subject_matter: str, texts: list[np.ndarray], with_folder: bool = False, spread: bool = False
    ) -> Examined:
        """Ask the reference. with_folder: also write the folder of bf16 weights, which some ways load. spread: of
        weights that lie anywhere within the steps to which the file's were rounded."""
        questions = self._scratch / f"{subject_matter}.npz"
        Questions(texts).save(questions)
        folder = self._scratch / f"{subject_matter} in bf16" if with_folder else None
        settings = {"folder": None if folder is None else str(folder), "spread": spread}
        reference = REFERENCE.run(self.file, questions, self._scratch / "reference.npz", settings)
        log_line(f"{self.name}, {subject_matter}: {len(reference.best):,} positions of {reference.about}")
        return Examined(questions, reference, folder)

    def ask(self, runner: Runner, way: Way, examined: Examined) -> Answers | None:
        """Return an engine's answers, which are asked for once, or None where it failed, which is reported."""
        asked = f"{examined.questions.stem}, {way.name}, {runner.name}"
        answers = self._scratch / f"{asked}.npz"
        if answers.exists():
            return Answers.load(answers)
        model = examined.folder if way.of_folder and examined.folder is not None else self.file
        try:
            found = runner.run(model, examined.questions, answers, way.settings)
        except EngineFailed as error:
            log_line(f"{self.name}, {asked}: {error}")
            return None
        log_line(f"{self.name}, {asked}: KL {agreement(examined.reference, found).kl_mean:.5f}")
        return found
