"""`roformer-lite predict`: lines in, lines out, for whatever task the model was trained on."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InputError, check_number
from ..model_name import check_model_name
from ..output_file import complete_file
from ..training.data_files import decode_line, numbered_lines
from .command_parser import CommandParser

_BATCHES_AT_ONCE = 32  # read ahead, so that lines of similar length can share a batch


@dataclass
class PredictArguments:
    """Options of `roformer-lite predict`, besides the model directory."""

    input_file: str | None = field(default=None, metadata={"help": "UTF-8 text, also .gz. Default: standard input."})
    output_file: str | None = field(default=None, metadata={"help": "Where to write. Default: standard output."})
    batch_size: int = field(default=32, metadata={"help": "Lines in a batch."})
    beams: int | None = field(
        default=None, metadata={"help": "Beams of the search for generated text. Default: as saved with the model."}
    )
    max_new_tokens: int | None = field(default=None, metadata={"help": "Largest number of generated tokens."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, cuda:1 … Default: cuda if there is one."})

    def __post_init__(self):
        for name in ("batch_size", "beams", "max_new_tokens"):
            check_number(name, getattr(self, name), at_least=1)
        if self.input_file is not None and not Path(self.input_file).exists():
            raise InputError(f"--input_file {self.input_file}: No such file or directory")

    @property
    def generation(self) -> dict[str, Any]:
        """The options given that are for `generate`."""
        options: dict[str, Any] = {} if self.beams is None else {"num_beams": self.beams}
        if self.max_new_tokens is not None:
            options |= {"max_new_tokens": self.max_new_tokens, "max_length": None}  # in place of the saved limit
        return options


def main(argv: list[str]) -> None:
    """Run `roformer-lite predict DIR`."""
    parser = CommandParser(
        "predict",
        "Read lines and write one answer for each: generated text, label and probability, or tagged tokens, depending "
        "on the task of the model.",
        [PredictArguments],
        DIR="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    from transformers.utils.logging import disable_progress_bar

    from .predictor import Predictor

    disable_progress_bar()  # of loading the weights
    with ExitStack() as stack:
        output = sys.stdout
        if options.output_file:  # opened before the model is loaded, which takes seconds
            output = stack.enter_context(complete_file(options.output_file, "--output_file"))
        predictor = Predictor.load(paths.dir, options.device)
        lines = (line for _, line in numbered_lines(options.input_file)) if options.input_file else _standard_input()
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
