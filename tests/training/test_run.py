"""Every training writes run.yaml, a command repeats it, and options after it override it."""

from pathlib import Path

import pytest
import yaml
from conftest import data_beside
from program import TINY, assert_same_models, card_of, refused, run, train, write_rows

from roformer_lite.errors import InputError
from roformer_lite.options.run import parse_run

DATA = data_beside(__file__)

WORDS = ["red fox", "blue sea", "red rose", "blue sky"]
SMALL = (
    f"classify {TINY} --max_steps 4 --validation_fraction 0.25 "
    "--training_arguments lr_scheduler_type=cosine adam_beta2=0.98"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    rows = [{"text": text, "label": text.split()[0]} for text in WORDS * 12]
    data = write_rows(folder / "train.jsonl", rows)
    train(SMALL, data, folder / "first", dataset_title="Two: colours")
    return folder


def test_the_file_repeats_the_training(trained):
    path = trained / "first" / "run.yaml"
    content = yaml.safe_load(path.read_text())
    assert content["task"] == "classify" and content["size"] == "tiny"
    assert content["training_arguments"] == {
        "lr_scheduler_type": "cosine",
        "adam_beta2": 0.98,
    }
    assert "--output_dir" in refused("train", path)
    run("train", path, output_dir=trained / "again", overwrite_output_dir=True)
    assert_same_models(trained / "first", trained / "again")
    # The file does not agree to replace a model.
    repeated = yaml.safe_load((trained / "again" / "run.yaml").read_text())
    assert repeated == content


def test_options_after_the_file_override_it(trained):
    path = trained / "first" / "run.yaml"
    run = parse_run(
        str(path),
        "--max_steps 9 --training_arguments adam_beta2=0.9 --output_dir x".split(),
    )
    assert run.training.max_steps == 9 and run.card.dataset_title == "Two: colours"
    assert run.training.training_arguments == {"lr_scheduler_type": "cosine", "adam_beta2": 0.9}
    shown = run.command()
    assert (
        "--train_file train.jsonl" in shown
        and str(trained) not in shown
        and "adam_beta2=0.9 " in shown
    )


def test_a_person_edits_it(trained, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        f"task: mlm\ntrain_file: {trained / 'train.jsonl'}\nline_by_line: true\noutput_dir: out\n"
        "learning_rate: 1e-3\ntraining_arguments: [adam_beta2=0.9]\n"
    )
    run = parse_run(str(tmp_path / "mine.yaml"), [])
    assert (
        run.task == "mlm" and run.data.line_by_line is True and run.training.learning_rate == 1e-3
    )
    assert run.training.training_arguments == {"adam_beta2": 0.9}
    assert run.output_dir == Path("out")


def test_words_yaml_and_python_describe_the_same_run(trained, tmp_path):
    file = trained / "train.jsonl"
    values = DATA["values"]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"task": "classify", "train_file": str(file), **values}))
    run = parse_run("classify", [*DATA["words"], "--train_file", str(file)])
    assert parse_run("classify", [], {"train_file": file, **values}) == run
    assert parse_run(str(path), []) == run


@pytest.mark.parametrize("name", ["-", "--a", "-1", "--text_column", "a b", "-a b", "=", "--a=b"])
def test_columns_may_have_any_name(trained, tmp_path, name):
    """A name may look like an option, in run.yaml and after an equals sign on the command line."""
    options = ["--train_file", str(trained / "train.jsonl"), f"--text_column={name}"]
    run = parse_run("classify", [*options, "--output_dir", str(tmp_path / "out")])
    assert run.data.text_column == name
    run.save(tmp_path)
    other = ["--output_dir", str(tmp_path / "other")]
    assert parse_run(str(tmp_path / "run.yaml"), other).data == run.data


@pytest.mark.parametrize(("text", "message"), DATA["mistakes"])
def test_mistakes_in_the_file(text, message, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        parse_run(str(tmp_path / "run.yaml"), [])


def test_tensorboard_and_paths_of_arguments(trained, tmp_path):
    """The logs of TensorBoard stay with the model, and the card shows no path of the machine."""
    configuration = tmp_path / "fsdp.json"
    configuration.write_text("{}")
    more = f"{SMALL} report_to=tensorboard fsdp_config={configuration}"
    train(more, trained / "train.jsonl", tmp_path / "logged")
    assert list((tmp_path / "logged" / "runs").glob("**/events.*"))
    card = card_of(tmp_path / "logged")
    assert "fsdp_config=fsdp.json" in card and str(tmp_path) not in card
