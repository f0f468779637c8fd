"""`roformer-lite demo`: a whole training, from making the data to using the saved model, in about
two minutes."""

import random
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..answers import open_model
from ..command_options import DemoArguments
from ..errors import InputError
from ..output import write_whole_file
from ..run import parse_run, shown_command
from ..train.train import train
from .demo_data import Example, unique_examples

TRAIN_SIZE, VALIDATION_SIZE, TEST_SIZE = 60_000, 500, 2_000

# The best result that two cores reached within two minutes when sizes and rates were tried.
RECIPE = (
    "--size tiny --config hidden_dropout=0.0 --vocab_size 600 --max_source_length 96 --max_target_length 16 "
    "--max_tokens_per_batch 1200 --max_steps 1200 --learning_rate 1e-3 --ema_decay 0.99 "
    "--per_device_eval_batch_size 250 --language en zh --license apache-2.0 "
    "--training_arguments eval_strategy=steps eval_steps=400 save_strategy=steps save_steps=400"
).split()

CARD = [
    *("--title", "Dates in one form"),
    *("--dataset_title", "dates made by roformer-lite demo"),
    *(
        "--limitations",
        "Knows only dates from 1900 to 2099, each alone on a line.",
    ),
]


def main(arguments: DemoArguments, argv: Sequence[str]) -> None:
    """Run `roformer-lite demo`. The data stay in a directory next to the model's."""
    held_out = unique_examples(VALIDATION_SIZE + TEST_SIZE, arguments.seed, held_out=True)
    splits = {
        "train": unique_examples(TRAIN_SIZE, arguments.seed, held_out=False),
        "validation": held_out[:VALIDATION_SIZE],
        "test": held_out[VALIDATION_SIZE:],
    }
    target = Path(arguments.output_dir)
    given = ["--output_dir", str(target), "--seed", str(arguments.seed)]
    given += ["--overwrite_output_dir", str(arguments.overwrite_output_dir)]
    # The data stay, so that the run.yaml of the model repeats the training.
    data = target.with_name(f"{target.name}-data")
    data.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        path = data / f"{split}.tsv"
        rows = [f"{example.written}\t{example.standard}\n" for example in examples]
        text = "".join(["source\ttarget\n", *rows])
        if path.exists() and path.read_text("utf-8") != text and not target.exists():
            raise InputError(
                f"--output_dir {target}: the data would replace {path}; give another directory"
            )
        write_whole_file(path, text)
        given += [f"--{split}_file", str(path)]
    run = parse_run("seq2seq", [*RECIPE, *CARD, *given])
    run.shown = shown_command(["roformer-lite", "demo", *argv])
    train(run)
    show(target, splits["test"], Console())


def show(directory: Path, test: list[Example], console: Console) -> float:
    """Load the saved model, as a user would, and print its answers to unseen examples.

    Returns:
        The share of `test` that it gets exactly right.
    """
    saved = open_model(directory)
    answers = saved.answers([example.written for example in test], batch_size=250)
    lines = [saved.recipe.show(answer, {}).line for answer in answers]

    found: dict[str, list[tuple[str, str, str]]] = {}
    for example, line in zip(test, lines, strict=True):
        found.setdefault(example.kind, []).append((example.written, line, example.standard))
    table = Table(
        "written",
        "predicted",
        "true",
        "",
        title="The saved model, loaded again, on what it never saw",
    )
    right = {
        kind: sum(answer == true for _, answer, true in rows)
        for kind, rows in sorted(found.items())
    }
    for kind in right:
        for written, answer, true in random.Random(0).sample(found[kind], 4):
            table.add_row(written, answer, true, "✓" if answer == true else "✗")
    shares = [
        f"{kind}: {count} of {len(found[kind])} exactly right" for kind, count in right.items()
    ]
    console.print(table, *shares, sep="\n")
    share = sum(right.values()) / len(test)
    console.print(f"Exact match on all {len(test):,} held-out examples: {share:.2%}")
    return share
