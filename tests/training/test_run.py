"""run.yaml: every training writes it, a command repeats it, options after it override it."""

import pytest
import yaml
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.commands.train import parse_run
from roformer_lite.errors import InputError
from roformer_lite.train.run import read_run_file

WORDS = ["red fox", "blue sea", "red rose", "blue sky"]
SMALL = "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 --vocab_size 300 --max_steps 4 "
SMALL += "--validation_fraction 0.25 --use_cpu --disable_tqdm --training_arguments lr_scheduler_type=cosine adam_beta2=0.98"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = "".join(f"{text},{text.split()[0]}\n" for text in WORDS * 12)
    (folder / "train.csv").write_text("text,label\n" + rows)
    files = ["--train_file", str(folder / "train.csv"), "--output_dir", str(folder / "first")]
    assert main(["train", "classify", *files, *SMALL.split(), "--title", "Two: colours"]) == 0
    return folder


def test_the_file_repeats_the_training(trained, capsys):
    path = trained / "first" / "run.yaml"
    content = yaml.safe_load(path.read_text())
    assert content["task"] == "classify" and content["model"]["size"] == "tiny"
    assert content["training"]["training_arguments"] == {
        "lr_scheduler_type": "cosine",
        "adam_beta2": 0.98,
    }
    assert main(["train", str(path)]) == 2  # its own model is there
    assert "holds a finished model" in capsys.readouterr().err
    assert main(["train", str(path), "--output_dir", str(trained / "again")]) == 0
    weights = [load_file(trained / name / "model.safetensors") for name in ("first", "again")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    repeated = yaml.safe_load((trained / "again" / "run.yaml").read_text())
    assert repeated == content | {
        "training": content["training"] | {"output_dir": str(trained / "again")}
    }


def test_options_after_the_file_override_it(trained):
    path = trained / "first" / "run.yaml"
    run = parse_run(
        str(path),
        ["--max_steps", "9", "--training_arguments", "adam_beta2=0.9", "--output_dir", "x"],
    )
    assert run.training.max_steps == 9 and run.card.title == "Two: colours"
    assert run.training.stock == {"lr_scheduler_type": "cosine", "adam_beta2": 0.9}
    difference = run.difference(yaml.safe_load(path.read_text()))
    changes = "--max_steps was 4 and is 9, --adam_beta2 was 0.98 and is 0.9"
    assert difference == f"--output_dir was {trained / 'first'} and is x, {changes}"
    shown = parse_run(str(path), []).command()
    assert (
        "--train_file train.csv" in shown
        and str(trained) not in shown
        and "adam_beta2=0.98" in shown
    )


def test_a_person_edits_it(trained, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"task: mlm\ndata:\n  train_file: {trained / 'train.csv'}\n  line_by_line: true\nmodel: {{}}\n"
        "training:\n  output_dir: out\n  learning_rate: 1e-3\n  training_arguments: [adam_beta2=0.9]\n"
    )
    run = parse_run(str(tmp_path / "mine.yaml"), [])
    assert (
        run.task == "mlm" and run.data.line_by_line is True and run.training.learning_rate == 1e-3
    )
    assert run.training.stock == {"adam_beta2": 0.9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: classify\nmodle: {}\n", "modle is no section"),
        ("task: clasify\n", "it must have a line such as"),
        ("task: [\n", "cannot be read"),
    ],
)
def test_mistakes_in_the_file(text, message, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_run_file(tmp_path / "run.yaml")
