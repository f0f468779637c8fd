"""`python -m benchmarks TASK [options]`: compare RoFormerLite models, and stock models after
`padding_free`, with others that do the same work.

TASK is `padding_free` (training and evaluation with and without padding), `graphs` (exported graphs
with and without padding), `accelerator` (forms of attention without padding, on a GPU), `versions`
(this checkout and another one), `trainers` (trainers of several libraries with and without
padding), `floor` (a training step and its matrix products alone), `losses` (the loss of a language
model, by this package and by torch), `fine-tuning` (a BERT, by the command and by the stock
Trainer) or `long-texts` (a trained model on texts longer than those of its training).
`python -m benchmarks TASK --help` lists the options.
"""

import sys
from types import ModuleType

from transformers import HfArgumentParser

from . import (
    accelerator,
    fine_tuning,
    floor,
    graphs,
    long_texts,
    losses,
    padding_free,
    trainers,
    versions,
)
from .processes import set_up

# Each has a dataclass `Options` and a function `main` that takes them.
TASKS: dict[str, ModuleType] = {
    "accelerator": accelerator,
    "fine-tuning": fine_tuning,
    "floor": floor,
    "graphs": graphs,
    "long-texts": long_texts,
    "losses": losses,
    "padding_free": padding_free,
    "trainers": trainers,
    "versions": versions,
}


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in TASKS:
        raise SystemExit(f"{__doc__}\nTASK is one of: {', '.join(TASKS)}")
    name, *words = arguments
    task = TASKS[name]
    parser = HfArgumentParser(
        task.Options,
        prog=f"python -m benchmarks {name}",
        description=task.__doc__,
        allow_abbrev=False,
    )
    (options,) = parser.parse_args_into_dataclasses(words)
    set_up()
    task.main(options)


if __name__ == "__main__":
    main(sys.argv[1:])
