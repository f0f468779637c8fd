"""`train --seeds`: what each seed gives is what it gives alone, the best one is kept, and an interruption changes
nothing."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import ENVIRONMENT, running_hub
from huggingface_hub import ModelCard

from roformer_lite.cli import main
from roformer_lite.train import train
from roformer_lite.train.callbacks import TrainingClock

WORKER = Path(__file__).with_name("seeds_worker.py")
SEEDS = ["3", "5", "1"]
OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --learning_rate 3e-2 --num_train_epochs 3 --use_cpu true --disable_tqdm true --ema_decay 0.5"
).split()
WORDS = ["red", "green", "blue", "white", "dark", "pale", "warm", "cold"]


def write_rows(path: Path, amount: int, seed: int) -> None:
    """Texts whose label is hard to learn, and sometimes wrong: seeds give different metrics."""
    draw = random.Random(seed)
    texts = [draw.choices(WORDS, k=4) for _ in range(amount)]
    labels = ["ab"[(("red" in text) != ("warm" in text)) ^ (draw.random() < 0.1)] for text in texts]
    rows = [f"{' '.join(text)},{label}" for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Data, and `whole`: the model of a command with several seeds, from the first step to the last."""
    folder = tmp_path_factory.mktemp("seeds")
    for number, (split, amount) in enumerate({"train": 96, "validation": 40, "test": 40}.items()):
        write_rows(folder / f"{split}.csv", amount, seed=number)
    assert main(command(folder, "whole", "--seeds", *SEEDS)) == 0
    return folder


def command(folder: Path, name: str, *options: str) -> list[str]:
    files = [
        part for split in ("train", "validation", "test") for part in (f"--{split}_file", f"{folder}/{split}.csv")
    ]
    return ["train", "classify", *files, *OPTIONS, *options, "--output_dir", str(folder / name)]


def results_of(model: Path) -> dict:
    return json.loads((model / "results.json").read_text("utf-8"))


def of_seeds(model: Path) -> dict:
    """All that `results.json` says of the seeds, without what a clock measured."""
    return {name: value for name, value in results_of(model)["seeds"].items() if name != "whole_minutes"}


def killed(folder: Path, name: str, seed: str, step: int) -> None:
    arguments = [seed, str(step), *command(folder, name, "--seeds", *SEEDS)]
    ended = subprocess.run([sys.executable, str(WORKER), *arguments], capture_output=True, text=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]


@pytest.mark.slow
def test_each_seed_gives_what_it_gives_alone_and_the_best_is_kept(folder, capsys):
    results = results_of(folder / "whole")
    several, alone = results["seeds"], {}
    for seed in SEEDS:
        assert main(command(folder, f"alone-{seed}", "--seed", seed)) == 0
        alone[seed] = results_of(folder / f"alone-{seed}")
    assert several["metrics"] == {seed: alone[seed]["metrics"] for seed in SEEDS}
    validation = [alone[seed]["metrics"]["validation"]["accuracy"] for seed in SEEDS]
    kept = SEEDS[int(np.argmax(validation))]
    assert kept != SEEDS[0] and kept != max(SEEDS, key=lambda seed: alone[seed]["metrics"]["test"]["accuracy"])
    assert str(several["kept"]) == kept and several["chosen_by"] == "validation accuracy"
    for name in ("model.safetensors", "tokenizer.json", "config.json", "loss_curve.png"):
        assert (folder / "whole" / name).read_bytes() == (folder / f"alone-{kept}" / name).read_bytes(), name
    for name in ("metrics", "by_label", "parts", "baselines", "verdict", "rows"):
        assert results[name] == alone[kept][name], name
    assert results["training"]["arguments"] == alone[kept]["training"]["arguments"]
    for split in ("validation", "test"):
        for name in ("loss", "accuracy", "macro_f1"):
            values = [alone[seed]["metrics"][split][name] for seed in SEEDS]
            assert several["mean"][split][name] == pytest.approx(np.mean(values), rel=1e-12)
            assert several["standard_deviation"][split][name] == pytest.approx(np.std(values, ddof=1), rel=1e-12)
    assert not (folder / "whole.training").exists()


@pytest.mark.slow
def test_card_and_summary_say_which_seed_was_kept_and_why(folder, capsys):
    assert main(command(folder, "shown", "--seeds", *SEEDS)) == 0
    shown = capsys.readouterr()
    assert shown.err.count("Baseline, accuracy: most frequent class") == 1, "they are measured once"
    results = results_of(folder / "shown")
    several, accuracy = results["seeds"], results["metrics"]["validation"]["accuracy"]
    mean, deviation = (several[name]["test"]["accuracy"] for name in ("mean", "standard_deviation"))
    sentence = (
        f"Over the seeds 3, 5, 1 the accuracy on the test data is {mean:.4f} ± {deviation:.4f} (mean and standard "
        f"deviation). The model of seed {several['kept']} is kept: its validation accuracy is best, {accuracy:.4f}"
    )
    assert shown.out.count(sentence) == 1 and shown.out.count("classify: ") == 1
    card = ModelCard.load(folder / "shown" / "README.md")
    assert sentence in card.text and "### Over 3 seeds" in card.text.partition("## How to use it")[0]
    assert f"| {mean:.4g} ± {deviation:.2g} |" in card.text and "for this seed as a whole" in card.text
    assert f"--seeds {' '.join(SEEDS)}" in card.text and f"| seed | {several['kept']} |" in card.text
    assert [round(value, 4) for value in results["metrics"]["test"].values()][1:] == [
        result.metric_value for result in card.data.eval_results if result.dataset_split == "test"
    ]
    assert main(["evaluate", str(folder / "shown"), "--test_file", str(folder / "test.csv")]) == 0
    assert f"{results['metrics']['test']['accuracy']:.4f}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "step"), [("3", 4), ("1", 8)])
def test_a_killed_command_continues_to_the_same_model(folder, capsys, seed, step):
    name = f"killed-{seed}"
    killed(folder, name, seed, step)
    left, place = folder / f"{name}.training", SEEDS.index(seed)
    assert [(left / f"seed-{other}" / "results.json").is_file() for other in SEEDS] == [True] * place + [False] * (
        3 - place
    )
    assert sum(1 for _ in left.glob("seed-*/model.safetensors")) == min(1, place), "the best one alone"
    assert main(command(folder, name, "--seeds", *SEEDS)) == 0
    messages = capsys.readouterr().err
    assert re.findall(r"^Seed (\d+), ", messages, re.MULTILINE) == SEEDS[place:]
    resumed = re.findall(r"Resuming from step (\d+): .*/seed-(\d+).training/", messages)
    assert resumed == ([(str(step // 3 * 3), seed)] if step else [])
    assert of_seeds(folder / name) == of_seeds(folder / "whole") and not left.exists()
    weights = [(folder / model / "model.safetensors").read_bytes() for model in (name, "whole")]
    assert weights[0] == weights[1]


@pytest.fixture
def interrupted(folder, tmp_path, monkeypatch) -> Path:
    """A folder with the data, and with what a command leaves that is interrupted in its second seed."""
    for split in ("train", "validation", "test"):
        shutil.copy(folder / f"{split}.csv", tmp_path)

    def interrupt(clock, args, state, control, **kwargs) -> None:
        if (args.seed, state.global_step) == (int(SEEDS[1]), 1):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main(command(tmp_path, "model", "--seeds", *SEEDS)) == 130
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_other_data_are_refused_or_begin_again(interrupted, capsys, split):
    write_rows(interrupted / f"{split}.csv", 50, seed=9)
    again = command(interrupted, "model", "--seeds", *SEEDS)
    assert main(again) == 2
    message = capsys.readouterr().err
    assert f"the data have changed: {split};" in message and "--overwrite_output_dir to start again" in message
    assert (interrupted / "model.training" / "seed-3" / "model.safetensors").is_file()
    assert main([*again, "--overwrite_output_dir"]) == 0
    assert main(command(interrupted, "new", "--seeds", *SEEDS)) == 0
    assert of_seeds(interrupted / "model") == of_seeds(interrupted / "new")


@pytest.mark.slow
def test_other_options_are_refused(interrupted, capsys):
    again = command(interrupted, "model", "--seeds", *SEEDS)
    assert main([*again, "--learning_rate", "1e-3"]) == 2
    assert "(--learning_rate was 0.03 and is 0.001)" in capsys.readouterr().err
    assert main([*again, "--seeds", "3", "5"]) == 2
    assert "(--seeds was 3 5 1 and is 3 5)" in capsys.readouterr().err
    assert main(command(interrupted, "model")) == 2
    assert "holds an unfinished training with other options (" in capsys.readouterr().err
    assert (interrupted / "model.training" / "seed-3" / "model.safetensors").is_file()


@pytest.mark.slow
def test_all_seeds_see_the_rows_that_the_first_one_holds_out(folder, monkeypatch):
    seen, load = [], train.load_splits

    def spy(*args):
        rows = load(*args)
        seen.append(list(rows["validation"]["text"]))
        return rows

    monkeypatch.setattr(train, "load_splits", spy)
    data = ["--train_file", str(folder / "train.csv"), "--validation_fraction", "0.3"]
    shared = ["train", "classify", *data, *OPTIONS, "--max_steps", "1"]
    assert main([*shared, "--seeds", "4", "2", "--output_dir", str(folder / "held")]) == 0
    assert main([*shared, "--seed", "4", "--output_dir", str(folder / "first")]) == 0
    assert main([*shared, "--seed", "2", "--output_dir", str(folder / "second")]) == 0
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert of_seeds(folder / "held")["metrics"]["4"] == results_of(folder / "first")["metrics"]


def test_refused_before_anything_is_trained(folder, capsys, monkeypatch):
    files = ["train", "classify", "--train_file", str(folder / "train.csv"), *OPTIONS, "--seeds", *SEEDS]
    assert main([*files, "--output_dir", str(folder / "no")]) == 2  # of fewer than 100 rows none are held out
    assert "--seeds: there are no validation data to choose the best model by" in capsys.readouterr().err
    assert not list(folder.glob("no*/**/*.safetensors")) and not (folder / "no").exists()


@pytest.mark.slow
def test_one_upload_of_the_model_that_is_kept(folder, tmp_path):
    with running_hub() as hub:
        environment = {**os.environ, **ENVIRONMENT, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
        arguments = command(folder, "uploaded", "--seeds", *SEEDS, "--push_to_hub", "--license", "apache-2.0")
        program = [sys.executable, "-m", "roformer_lite.cli"]
        done = subprocess.run([*program, *arguments], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("Uploaded to me/uploaded") == 1
        there = {name: file.content for name, file in hub.files("me/uploaded").items()}
    here = {path.name: path.read_bytes() for path in (folder / "uploaded").iterdir()}
    assert here.items() <= there.items() and of_seeds(folder / "uploaded") == of_seeds(folder / "whole")
    assert b'from_pretrained("me/uploaded")' in here["README.md"] and b"### Over 3 seeds" in here["README.md"]
