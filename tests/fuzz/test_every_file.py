"""Every file that a command reads, with bits flipped, cut off, of other contents, with wrong fields, missing, and a
directory in its place: one sentence that names the file, or a right result. A sample of them each time, many with the
slow tests."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import build, stack_config
from damage import Damage, bit_flips, field_damage, not_json, truncations
from safetensors.torch import load_file, save_file
from test_saved_models import TEXTS
from transformers.utils.logging import disable_progress_bar

import hf_roformer_lite as rl
from hf_roformer_lite import conversion
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from roformer_lite.cli import main
from roformer_lite.train import train as training

WEIGHTS = "model.safetensors"
TRAINED = (
    "--size tiny --use_cpu true --disable_tqdm true --baselines false --config hidden_size=16 num_attention_heads=2 "
    "intermediate_size=16 num_hidden_layers=1 --output_dir out --training_arguments save_strategy=steps save_steps=1 "
).split()
LEARN = (
    "train classify --train_file rows.csv --validation_file rows.csv --vocab_size 280 --max_steps 3 --ema_decay 0.9"
).split() + [*TRAINED, "eval_strategy=steps", "eval_steps=1"]
SEEDS = [*LEARN, "--seeds", "1", "2"]
PREPARED = ["train", "mlm", "--prepared", "{}", "--max_steps", "1", *TRAINED]
PREDICT = ["predict", "{}", "--input_file", "lines.txt", "--device", "cpu"]
EVALUATE = ["evaluate", "{}", "--test_file", "rows.csv", "--device", "cpu"]
# By directory: the commands that read it. What of it they don't use may be damaged.
COMMANDS = {
    "classify": [PREDICT, EVALUATE, ["bundle", "{}", "out"], ["export", "{}", "out"]],
    "causal": [[*PREDICT, "--max_new_tokens", "2"]],
    "shards": [PREDICT],
    "sentence": [PREDICT],
    "mlm": [["convert", "{}", "out", "--to", "roformer"]],
    "roformer": [["convert", "{}", "out"], ["verify", "{}"]],
    "prepared": [PREPARED],
    "out.training": [LEARN],
    "seeds.training": [SEEDS],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """What the commands read, all of it right."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("lines.txt").write_text("one two\n\nthree\n")
        Path("rows.csv").write_text("text,label\n" + "one two,LABEL_0\nthree four,LABEL_1\n" * 8)
        tokenizer = rl.RoFormerLiteTokenizer.train(TEXTS, vocab_size=300)
        fields = {"vocab_size": len(tokenizer), "num_hidden_layers": 1, "hidden_size": 16}
        for task, model_class in {
            "classify": rl.RoFormerLiteForSequenceClassification,
            "causal": rl.RoFormerLiteForCausalLM,
            "mlm": rl.RoFormerLiteForMaskedLM,
        }.items():
            more = EXPRESSIBLE | {"lm_head_transform": True, "lm_head_bias": True} if task == "mlm" else {}
            model = build(model_class, stack_config(**fields, **more))
            model.save_pretrained(task)
            tokenizer.save_pretrained(task)
            Path(task, "results.json").write_text(json.dumps({"task": task, "settings": {}}))
        shutil.copytree("classify", "shards")
        Path("shards", WEIGHTS).unlink()
        rl.RoFormerLiteForSequenceClassification.from_pretrained("classify").save_pretrained(
            "shards", max_shard_size="12KB"
        )
        conversion.export_checkpoint("roformer", "mlm", "roformer")
        Path("text.txt").write_text("one two three four five\nsix seven one\n" * 20)
        prepare = ["prepare", "mlm", "--train_file", "text.txt", "--vocab_size", "280", "--block_size", "16"]
        assert main([*prepare, "--output_dir", "prepared"]) == 0
        build(rl.RoFormerLiteModel, stack_config(**fields)).save_pretrained("encoder")
        tokenizer.save_pretrained("encoder")
        _make_sentence_model("encoder", "sentence")
        save, finished = training.save_finished_model, []

        def interrupt(*arguments) -> dict:
            finished.append(1)
            if len(finished) == 2:  # the first seed is saved, the second not
                return save(*arguments)
            raise KeyboardInterrupt

        patch.setattr(training, "save_finished_model", interrupt)
        assert main(LEARN) == 130
        Path("out.training").rename("kept")
        assert main(SEEDS) == 130
        Path("out.training").rename("seeds.training")
        Path("kept").rename("out.training")
    return folder


def _make_sentence_model(encoder: str, folder: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    parts = [modules.Transformer(encoder), modules.Pooling(16, pooling_mode="mean"), modules.Dense(16, 8)]
    SentenceTransformer(modules=parts).save_pretrained(folder, create_model_card=False)
    Path(folder, "results.json").write_text('{"task": "embed", "settings": {}}')


def _replace(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damages(folder: Path, file: str, seed: int) -> Iterator[tuple[str, Damage]]:
    yield from truncations(file)
    yield from bit_flips(file, 20, seed)
    yield f"{file} missing", lambda folder: (folder / file).unlink()
    yield f"{file} a directory", lambda folder: _replace(folder / file)
    if file.endswith(".json"):
        yield from not_json(file)
        fields = json.loads((folder / file).read_text())
        yield from field_damage(file, fields if isinstance(fields, dict) else {}, 2, seed)


def run(place: Path, directory: str, damage: Damage, command: list[str], capsys) -> tuple[int, str, Path]:
    """Exit status and messages of a command after the damage, and where the damage is."""
    is_training = directory.endswith(".training")
    read = Path("out.training" if is_training else directory)
    for left in ("out", "out.training", read):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(place / directory, read)
    damage(read)
    capsys.readouterr()
    status = main([part.replace("{}", str(read)) for part in command])
    return status, capsys.readouterr().err, read


def problem(place: Path, directory: str, damage: Damage, command: list[str], expected: Path, capsys) -> str:
    """What is wrong with the end of a command; empty if it refused in a sentence, or made what is `expected`."""
    try:
        status, message, read = run(place, directory, damage, command, capsys)
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    errors = [line for line in message.splitlines() if "error: " in line]
    if status == 2 and len(errors) == 1 and str(read) in errors[0]:
        return ""
    if status == 0 and (not expected.exists() or Path("out", WEIGHTS).read_bytes() == expected.read_bytes()):
        return ""
    return f"{status}: {errors or message[-300:]}"


@pytest.mark.parametrize("number", [1, pytest.param(8, marks=pytest.mark.slow)], ids=["sample", "many"])
@pytest.mark.parametrize("directory", COMMANDS)
def test_damaged_files(directory, number, place, tmp_path, capsys, monkeypatch):
    """A training that is continued, or on prepared data, must end in the very same weights."""
    monkeypatch.chdir(tmp_path)
    for data in ("lines.txt", "rows.csv"):
        shutil.copy(place / data, tmp_path)
    files = [path for path in (place / directory).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(place / directory)) for path in files)
    wrong, chance, expected = [], random.Random(f"{number} {directory}"), Path("expected")
    for command in COMMANDS[directory]:
        if command[0] == "export" and number == 1:  # ten seconds each
            continue
        if command[0] == "train":
            assert run(place, directory, lambda folder: None, command, capsys)[0] == 0
            shutil.copy(Path("out", WEIGHTS), expected)
        for file in names if number > 1 else chance.sample(names, 3):
            possible = list(damages(place / directory, file, number))
            for name, damage in chance.sample(possible, min(number, len(possible))):
                if told := problem(place, directory, damage, command, expected, capsys):
                    wrong.append(f"{command[0]} {directory}, {name}: {told}")
    assert not wrong, "\n".join(wrong)


def _set(file: str, **fields) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **fields}))

    return damage


def _as_type(dtype: torch.dtype) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        name = next(name for name in tensors if "q_proj" in name or "query.weight" in name)
        save_file({**tensors, name: tensors[name].to(dtype)}, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def _catastrophic(folder: Path) -> None:
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    pipeline["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(?<n>a\\g<n>?)*$"}
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    Path("lines.txt").write_text("a" * 60 + "!\n")


STRANGE = (torch.complex64, torch.float8_e4m3fn, torch.int8)
VERIFY, CONVERT = COMMANDS["roformer"][1], COMMANDS["roformer"][0]
TUNE = [*LEARN[:4], "--model_name_or_path", "{}", "--use_cpu", "--max_length", "16", "--output_dir", "out"]
SILENT = [  # what the libraries below accept, or end the process at
    *(
        ("classify", _set("config.json", pad_token_id=7), command, "pad_token_id=7, which the tokenizer calls")
        for command in (PREDICT, ["export", "{}", "out"], EVALUATE, TUNE)
    ),
    ("causal", _set("config.json", pad_token_id=7), ["serve", "{}"], "pad_token_id=7"),
    ("sentence", lambda folder: (folder / "modules.json").unlink(), PREDICT, "it has no modules.json"),
    ("sentence", lambda folder: (folder / "1_Pooling/config.json").unlink(), PREDICT, "names 1_Pooling/config.json"),
    ("shards", lambda folder: min(folder.glob("model-*")).unlink(), PREDICT, "model-00001"),
    *(("classify", _as_type(dtype), PREDICT, "has other numbers than F64") for dtype in STRANGE),
    *(("mlm", _as_type(dtype), COMMANDS["mlm"][0], "has the type torch.") for dtype in STRANGE),
    *(("roformer", _as_type(dtype), VERIFY, "has the type torch.") for dtype in STRANGE[:2]),
    *(
        ("roformer", _set("config.json", vocab_size=300), command, "but the config says (300, ")
        for command in (VERIFY, CONVERT)
    ),
    ("roformer", _set("config.json", max_position_embeddings=3), VERIFY, "size mismatch for roformer.encoder.embed"),
    ("classify", _catastrophic, PREDICT, "the tokenizer cannot encode one of the texts"),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gradient_accumulation_steps=0", "--training_arguments gradient_accumulation_steps=0 must be at least 1"),
        ("eval_strategy=steps save_strategy=steps eval_steps=0 save_steps=x", "--training_arguments save_steps"),
        (
            "dataloader_persistent_workers=true",
            "option needs num_workers > 0; see --training_arguments",
        ),
    ],
)
def test_arguments_that_transformers_accepts(arguments, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(place / "rows.csv", "rows.csv")
    assert main([*LEARN, *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("number", range(len(SILENT)))
def test_what_was_silent_or_a_traceback(number, place, tmp_path, capsys, monkeypatch):
    directory, damage, command, message = SILENT[number]
    monkeypatch.chdir(tmp_path)
    for name in (directory, "lines.txt", "rows.csv"):
        (shutil.copytree if (place / name).is_dir() else shutil.copy)(place / name, tmp_path / name)
    damage(Path(directory))
    assert main([part.replace("{}", directory) for part in command]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
