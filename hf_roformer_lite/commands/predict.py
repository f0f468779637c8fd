"""`roformer-lite predict`: lines in, lines out, for whatever task the model was trained on."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, HfArgumentParser, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file
from transformers.utils.logging import disable_progress_bar

from ..errors import InputError
from ..output_directory import RESULTS_FILE
from ..training.data_files import decode_line, numbered_lines
from ..training.tasks import TASKS
from ..training.tasks.base import Task

_BATCHES_AT_ONCE = 32  # lines read ahead, to make batches of similar length


@dataclass
class PredictArguments:
    """Options of `roformer-lite predict`, besides the model directory."""

    input_file: str | None = field(default=None, metadata={"help": "UTF-8 text, also .gz. Default: standard input."})
    output_file: str | None = field(default=None, metadata={"help": "Where to write. Default: standard output."})
    batch_size: int = field(default=32, metadata={"help": "Lines in a batch."})
    beams: int | None = field(
        default=None, metadata={"help": "Beams of generated text. Default: those it was measured with."}
    )
    max_new_tokens: int | None = field(default=None, metadata={"help": "Longest generated text in tokens."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, cuda:1 … Default: cuda if there is one."})

    def __post_init__(self):
        for name in ("batch_size", "beams", "max_new_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"--{name}={getattr(self, name)} must be at least 1")

    @property
    def generation(self) -> dict[str, Any]:
        """Options for `generate`, those that were given."""
        options: dict[str, Any] = {} if self.beams is None else {"num_beams": self.beams}
        if self.max_new_tokens is not None:
            options |= {"max_new_tokens": self.max_new_tokens, "max_length": None}  # in place of the saved limit
        return options


@dataclass
class Predictor:
    """A saved model, ready to answer lines."""

    task: type[Task]
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: dict[str, Any]

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
        return cls(fitting[0], model.to(device).eval(), tokenizer, settings)

    @torch.inference_mode()
    def answer(self, lines: list[str], batch_size: int, generation: dict[str, Any]) -> list[str]:
        """One line for each line, in order; empty for empty. Batches are of similar length, which costs least."""
        answers = [""] * len(lines)
        order = sorted((i for i, line in enumerate(lines) if line.strip()), key=lambda i: len(lines[i]))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = [lines[i].strip("\r\n") for i in indices]
            outputs = self.task.predict(self.model, self.tokenizer, batch, self.settings, generation)
            for i, output in zip(indices, outputs, strict=True):
                answers[i] = " ".join(output.split("\n")).strip()
        return answers


def main(argv: list[str]) -> None:
    """Run `roformer-lite predict DIR`."""
    parser = HfArgumentParser(
        [PredictArguments],
        prog="roformer-lite predict",
        description="Read lines, write the answers of a trained model, one a line: text, label and probability, or "
        "tagged tokens, as the model's task has it.",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="the model's directory, or its name on the Hub")
    options, namespace = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    disable_progress_bar()  # of loading the weights
    predictor = Predictor.load(namespace.directory, options.device)
    with ExitStack() as stack:
        lines = (line for _, line in numbered_lines(options.input_file)) if options.input_file else _standard_input()
        output = sys.stdout
        if options.output_file:
            output = stack.enter_context(open(options.output_file, "w", encoding="utf-8"))
        interactive = not options.input_file and sys.stdin.isatty()
        for chunk in _chunks(lines, 1 if interactive else options.batch_size * _BATCHES_AT_ONCE):
            for answer in predictor.answer(chunk, options.batch_size, options.generation):
                output.write(answer + "\n")
            output.flush()


def _standard_input() -> Iterator[str]:
    for number, raw in enumerate(sys.stdin.buffer, 1):
        yield decode_line(raw, f"<stdin>:{number}")


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    lines = iter(lines)
    while chunk := list(islice(lines, size)):
        yield chunk
