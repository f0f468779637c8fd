"""`roformer-lite demo`: a whole training, from making the data to using the saved model, in about
two minutes."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..answers import open_model
from ..errors import InputError
from ..options.run import parse_run, shown_command
from ..output import RESULTS_FILE, write_whole_file
from ..saved_model import read_object
from ..train.finished_model import publish
from ..train.train import train
from .demo_data import Example, unique_examples
from .demo_options import DemoArguments

TRAIN_SIZE = 60_000
VALIDATION_SIZE = 500
TEST_SIZE = 2_000
# The number of examples of each kind that are printed.
NUM_SHOWN = 4

# Of all sizes and learning rates that were tried, these gave the best result within two minutes on
# two cores.
RECIPE = (
    "--size tiny --config hidden_dropout=0.0 --vocab_size 600 --max_source_length 96 "
    "--max_target_length 16 --max_tokens_per_batch 1200 --max_steps 1200 "
    "--learning_rate 1e-3 --ema_decay 0.99 "
    "--per_device_eval_batch_size 250 --language en zh --license apache-2.0 "
    "--training_arguments eval_strategy=steps eval_steps=400 save_strategy=steps save_steps=400"
).split()

CARD = {
    "title": "Dates in one form",
    "dataset_title": "dates made by roformer-lite demo",
    "limitations": "The model knows only dates from 1900 to 2099, one on each line.",
}


def main(arguments: DemoArguments, argv: Sequence[str]) -> None:
    """Run `roformer-lite demo`. The data stay in a directory next to the model's."""
    held_out = unique_examples(VALIDATION_SIZE + TEST_SIZE, arguments.seed, held_out=True)
    splits = {
        "train": unique_examples(TRAIN_SIZE, arguments.seed, held_out=False),
        "validation": held_out[:VALIDATION_SIZE],
        "test": held_out[VALIDATION_SIZE:],
    }
    target = Path(arguments.output_dir)
    options = {**CARD, **vars(arguments)}
    # The data stay, so that the run.yaml of the model can repeat the training.
    data = target.with_name(f"{target.name}-data")
    data.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        path = data / f"{split}.tsv"
        rows = [f"{example.written}\t{example.standard}\n" for example in examples]
        text = "".join(["source\ttarget\n", *rows])
        may_replace = arguments.overwrite_output_dir and target.exists()
        if path.exists() and path.read_text("utf-8") != text and not may_replace:
            raise InputError(
                f"--output_dir {target}: the data would replace {path}; give another directory"
            )
        write_whole_file(path, text)
        options[f"{split}_file"] = path
    given = [f"--{name}={value}" for name, value in options.items()]
    run = parse_run("seq2seq", [*RECIPE, *given])
    run.shown = shown_command(["roformer-lite", "demo", *argv])
    results = train(run)
    if results is not None:
        publish(results, run)
    show(target, splits["test"], Console())


def show(directory: Path, test: list[Example], console: Console) -> None:
    """Load the saved model, as a user would. Print some of its predictions for held-out examples,
    and the share of all held-out examples that are predicted exactly."""
    saved = open_model(directory)
    table = Table(
        "written",
        "predicted",
        "true",
        "kind",
        "",
        title="Answers of the saved model to unseen examples",
    )
    for kind in sorted({example.kind for example in test}):
        examples = [example for example in test if example.kind == kind][:NUM_SHOWN]
        answers = saved.answers([example.written for example in examples], batch_size=NUM_SHOWN)
        for example, answer in zip(examples, answers, strict=True):
            line = saved.recipe.show(answer, {}).line
            mark = "✓" if line == example.standard else "✗"
            table.add_row(example.written, line, example.standard, kind, mark)
    results = read_object(directory / RESULTS_FILE)
    share = results["metrics"]["test"]["exact_match"]
    console.print(table)
    console.print(f"Exact match on all {len(test):,} held-out examples: {share:.2%}")
