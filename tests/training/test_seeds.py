"""Each seed of `train --seeds` gives the model that it gives in a command of its own.

The best model is kept, and an interruption changes nothing.
"""

import contextlib
import json
import random
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from program import (
    TINY,
    assert_same_models,
    in_new_process,
    refused,
    results_of,
    run,
    write_rows,
)

from roformer_lite.training.callbacks import TrainingClock

WORKER = Path(__file__).with_name("killed_worker.py")
SEEDS = ["3", "5", "1"]
SEVERAL = "--seeds 3 5 1"
OPTIONS = f"{TINY} --learning_rate 3e-2 --num_train_epochs 3 --ema_decay 0.5 --join_baseline false"
WORDS = "red green blue white dark pale warm cold".split()


def write_split(path: Path, amount: int, seed: int) -> None:
    """Write texts with a label that is hard to learn and sometimes wrong.

    The metrics of different seeds therefore differ.
    """
    draw = random.Random(seed)
    texts = [draw.choices(WORDS, k=4) for _ in range(amount)]
    rows = []
    for text in texts:
        is_b = ("red" in text) != ("warm" in text)
        is_wrong = draw.random() < 0.1
        rows.append({"text": " ".join(text), "label": "b" if is_b != is_wrong else "a"})
    write_rows(path, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    for number, (split, amount) in enumerate({"train": 96, "validation": 40, "test": 40}.items()):
        write_split(folder / f"{split}.jsonl", amount, seed=number)
    return folder


@pytest.fixture(scope="module")
def whole(folder) -> Path:
    """The model of a command with several seeds that was not interrupted.

    The file `shown.txt` has what the command printed.
    """
    with (folder / "shown.txt").open("w") as shown, contextlib.redirect_stdout(shown):
        run(command(folder, "whole", SEVERAL))
    return folder / "whole"


def command(folder: Path, name: str, options: str) -> str:
    files = " ".join(
        f"--{split}_file {folder}/{split}.jsonl" for split in ("train", "validation", "test")
    )
    return f"train classify {files} {OPTIONS} {options} --output_dir {folder / name}"


@pytest.mark.slow
def test_each_seed_gives_what_it_gives_alone_and_the_best_is_kept(folder, whole):
    results = results_of(whole)
    several = results["seeds"]
    alone = {}
    for seed in SEEDS:
        run(command(folder, f"alone-{seed}", f"--seed {seed}"))
        alone[seed] = results_of(folder / f"alone-{seed}")
    assert several["metrics"] == {seed: alone[seed]["metrics"] for seed in SEEDS}
    validation, values = (
        [alone[seed]["metrics"][split]["accuracy"] for seed in SEEDS]
        for split in ("validation", "test")
    )
    kept = SEEDS[int(np.argmax(validation))]
    assert kept not in (SEEDS[0], SEEDS[int(np.argmax(values))])
    assert str(several["kept"]) == kept
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (whole / name).read_bytes() == (folder / f"alone-{kept}" / name).read_bytes(), name
    for name in "metrics by_label parts baselines verdict rows".split():
        assert results[name] == alone[kept][name], name
    mean, deviation = (several[name]["test"]["accuracy"] for name in ("mean", "standard_deviation"))
    assert mean == pytest.approx(np.mean(values), rel=1e-12)
    assert deviation == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert not (folder / "whole.training").exists()
    for text in ((folder / "shown.txt").read_text(), (whole / "README.md").read_text("utf-8")):
        assert (
            f"{mean:.4f} ± {deviation:.4f}" in text and f"The model of seed {kept} is kept" in text
        )


@pytest.mark.slow
def test_a_killed_command_continues_to_the_same_model(folder, whole, capsys):
    """The command is killed in the first seed and again in the last one."""
    killed_at = json.dumps([[0, 3, 4], [0, 1, 8]])
    words = command(folder, "killed", SEVERAL)
    arguments = [WORKER, folder, killed_at, *words.split()]
    left = folder / "killed.training"
    for place in (0, 2):
        ended = in_new_process(*arguments, status=-signal.SIGKILL)
        finished = [(left / f"seed-{seed}" / "results.json").is_file() for seed in SEEDS]
        assert finished == [number < place for number in range(3)]
    assert "Resuming from step 3" in ended.stderr
    run(words)
    messages = capsys.readouterr().err
    assert (
        re.findall(r"^Seed (\d+), . of 3$", messages, re.MULTILINE) == SEEDS[2:]
        and "Resuming from step 6" in messages
    )
    assert (
        results_of(folder / "killed")["seeds"] == results_of(whole)["seeds"] and not left.exists()
    )
    assert_same_models(folder / "killed", whole)


def test_all_seeds_are_tested_on_the_same_data(folder, monkeypatch):
    """The command is interrupted in the first seed, and with other test data in the second one."""
    first = command(folder, "tested", SEVERAL)
    others = shutil.copy(folder / "validation.jsonl", folder / "others.jsonl")
    second = first.replace(str(folder / "test.jsonl"), str(others))

    def interrupt(clock, args, state, control, **kwargs) -> None:
        is_second = (folder / "tested.training" / f"seed-{SEEDS[0]}").is_dir()
        if state.global_step == 7 and is_second == (typed is second):
            raise KeyboardInterrupt

    monkeypatch.setattr(TrainingClock, "on_step_begin", interrupt)
    typed = first
    run(typed, status=130)
    typed = second
    run(typed, status=130)
    assert "test.jsonl was" in refused(first)
    assert "--license was" in refused(f"{second} --license mit")


def test_refused_before_anything_is_trained(folder):
    # None of fewer than 100 rows are held out.
    files = {"train_file": folder / "train.jsonl", "output_dir": folder / "no"}
    message = "there are no validation data, which --seeds needs"
    assert message in refused(f"train classify {OPTIONS} {SEVERAL}", **files)
    message = "--validation_seed 3 has no effect with --validation_file"
    for options in ("", SEVERAL):
        assert message in refused(command(folder, "no", f"{options} --validation_seed 3"))
    assert not list(folder.glob("no*/**/*.safetensors")) and not (folder / "no").exists()
