"""A saved model that answers lines of text, whatever its task."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import cached_file

from ..errors import InputError
from ..output_directory import RESULTS_FILE
from ..training.tasks import TASKS
from ..training.tasks.base import SavedModel, Task


@dataclass
class Predictor:
    """A saved model, ready to answer lines."""

    task: type[Task]
    saved: SavedModel

    @classmethod
    def load(cls, directory: str, device: str | None = None) -> "Predictor":
        """Load what `roformer-lite train` saved, or any checkpoint of this architecture with a head.

        Raises:
            InputError: when there is no model, or none of the tasks fits its architecture.
        """
        try:
            config = AutoConfig.from_pretrained(directory)
            architecture = (config.architectures or ["no architecture"])[0]
            fitting = [task for task in TASKS.values() if architecture.endswith(task.architecture)]
            if not fitting:
                raise InputError(f"{directory}: {architecture} fits none of the tasks {', '.join(TASKS)}")
            tokenizer = AutoTokenizer.from_pretrained(directory)
            model = fitting[0].auto_model.from_pretrained(directory)
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"no model can be loaded from {directory}: {error}") from error
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        results = cached_file(directory, RESULTS_FILE, _raise_exceptions_for_missing_entries=False)
        settings = json.loads(Path(results).read_text("utf-8")).get("settings", {}) if results else {}
        return cls(fitting[0], SavedModel(model.to(device).eval(), tokenizer, settings))

    @torch.inference_mode()
    def answer(self, lines: list[str], batch_size: int, generation: dict[str, Any]) -> list[str]:
        """One answer for each line, in order; an empty line has an empty answer.

        Lines of similar length share a batch, which costs least.
        """
        answers = [""] * len(lines)
        order = sorted((i for i, line in enumerate(lines) if line.strip()), key=lambda i: len(lines[i]))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = [lines[i].strip("\r\n") for i in indices]
            outputs = self.task.predict(self.saved, batch, generation)
            for i, output in zip(indices, outputs, strict=True):
                answers[i] = " ".join(output.split("\n")).strip()
        return answers
