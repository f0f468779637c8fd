"""Tests of damage to every file that a command reads.

Files have flipped bits, are cut, have other contents or wrong fields, are missing, or are
directories. The command must give a right result, or one sentence that names the file. A sample of
the damages is tested each time, and many in the slow tests.
"""

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from damage import WEIGHTS, change_tensors, damage_file
from program import change_fields, write_json
from saved_models import save_model
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

import hf_roformer_lite as rl
from hf_roformer_lite import conversion
from roformer_lite.cli import main

Damage = Callable[[Path], object]
PREDICT = "predict {} --input_file lines.txt --device cpu".split()
EVALUATE = "evaluate {} --test_file rows.csv --device cpu".split()
# These commands read each directory. They may ignore damage to files that they don't use.
COMMANDS = {
    "classify": [PREDICT, EVALUATE, "export {} out".split()],
    "causal": [[*PREDICT, "--max_new_tokens", "2"]],
    "tag": [PREDICT],
    "seq2seq": [PREDICT],
    "jieba": [PREDICT],
    "shards": [PREDICT],
    "sentence": [PREDICT],
    "mlm": ["convert {} out --to roformer".split()],
    "roformer": [["convert", "{}", "out"]],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Make the files that the commands read, without any damage."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("lines.txt").write_text("one two\n\nthree\n")
        Path("rows.csv").write_text("text,label\n" + "one two,a\nthree four,b\n" * 8)
        for kind in "classify tag causal seq2seq".split():
            save_model(kind, Path(kind))
        save_model("embed", Path("encoder"))
        save_model("roformer", Path("mlm"))
        shutil.copytree("mlm", "jieba")
        tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] 一 二 三 one two ##r f".split()
        vocabulary = {token: number for number, token in enumerate(tokens)}
        tokenizer = rl.RoFormerLiteJiebaTokenizer(vocabulary)
        tokenizer.save_pretrained("jieba")
        tokenizer.save_vocabulary("jieba")
        Path("jieba", "tokenizer.json").unlink()
        shutil.copytree("classify", "shards")
        Path("shards", WEIGHTS).unlink()
        rl.RoFormerLiteForSequenceClassification.from_pretrained("classify").save_pretrained(
            "shards", max_shard_size="12KB"
        )
        conversion.export_checkpoint("roformer", "mlm", "roformer")
        sentence = SentenceTransformer("encoder", device="cpu")
        sentence.save_pretrained("sentence", create_model_card=False)
        Path("sentence", "results.json").write_text('{"task": "embed", "settings": {}}')
    return folder


@pytest.fixture(autouse=True)
def data(place, current_folder) -> None:
    """Run commands in a folder with the data."""
    for name in ("lines.txt", "rows.csv"):
        shutil.copy(place / name, current_folder)


def run(
    place: Path, directory: str, damage: Damage, command: list[str], capsys
) -> tuple[int, str, bytes]:
    """Run a command after the damage, and return its status, its messages and its output."""
    read = Path(directory)
    for left in ("out", read):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(place / directory, read)
    damage(read)
    capsys.readouterr()
    status = main([part.replace("{}", str(read)) for part in command])
    printed = capsys.readouterr()
    return status, printed.err, printed.out.encode()


def problem_of(
    result: tuple[int, str, bytes], directory: str, file: str, expected: bytes | None
) -> str:
    """Describe what is wrong with a result. The description is empty if nothing is.

    If the command fails, one error names the directory, or the line of the data that another kind
    of model would not read. Damaged weights must not change the output. Other damage may, but not
    the number of its lines.
    """
    status, messages, output = result
    errors = [line for line in messages.splitlines() if "error: " in line]
    is_named = len(errors) == 1 and (directory in errors[0] or "lines.txt:1" in errors[0])
    if status != 0 and not (status == 2 and is_named):
        return f"status {status}, {messages[-300:]}"
    if status == 2 or expected is None:
        return ""
    if file == WEIGHTS and output != expected:
        return f"another output, {messages[-300:]}"
    if output.count(b"\n") != expected.count(b"\n"):
        return f"another number of lines, {output!r}"
    return ""


def number_of_damages(command: list[str], number: int) -> int:
    """How many damages of a file a command is tried with. An export takes ten seconds."""
    if command[0] == "export":
        return number // 4
    return 4 * number if command[0] == "predict" else number


@pytest.mark.parametrize(
    "number", [1, pytest.param(4, marks=pytest.mark.slow)], ids=["sample", "many"]
)
@pytest.mark.parametrize("directory", COMMANDS)
def test_damaged_files(directory, number, place, capsys):
    """A command gives one error that names the file, or a result."""
    files = [path for path in (place / directory).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(place / directory)) for path in files)
    wrong = []
    chance = random.Random(f"{number} {directory}")
    for command in COMMANDS[directory]:
        expected = None
        if command[0] == "predict":
            status, _, expected = run(place, directory, lambda folder: None, command, capsys)
            assert status == 0
        for file in names if number > 1 else chance.sample(names, 3):
            for _ in range(number_of_damages(command, number)):
                seed = chance.randrange(10**6)
                damage = partial(damage_file, name=file, seed=seed)
                try:
                    result = run(place, directory, damage, command, capsys)
                    problem = problem_of(result, directory, file, expected)
                except BaseException as error:
                    problem = f"{type(error).__name__}: {error}"[-300:]
                if problem:
                    wrong.append(f"{command[0]} {directory}, {file}, seed {seed}: {problem}")
    assert not wrong, "\n".join(wrong)


def _set(file: str, **fields) -> Damage:
    return lambda folder: change_fields(folder / file, **fields)


def _modules(path: str) -> Damage:
    modules = [{"path": path, "type": "sentence_transformers.models.Pooling"}]
    return lambda folder: write_json(folder / "modules.json", modules)


def _change(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Damage:
    """Replace the first matrix of queries, or remove it."""

    def damage(folder: Path) -> None:
        def replace(tensors: dict[str, torch.Tensor]) -> None:
            name = next(name for name in tensors if "q_proj.w" in name or "query.w" in name)
            changed = change(tensors.pop(name))
            if changed is not None:
                tensors[name] = changed

        change_tensors(folder / WEIGHTS, replace)

    return damage


def _larger_tokenizer(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(folder)


(CONVERT,) = COMMANDS["roformer"]
TUNE = (
    "train classify --train_file rows.csv --model_name_or_path {} --use_cpu --max_length 16 "
    "--max_steps 1 --output_dir out"
).split()
# Without a check, libraries would accept these files, or end the process.
SILENT = [
    *(
        (
            "classify",
            _set("config.json", pad_token_id=7),
            command,
            "pad_token_id=7, which the tokenizer calls",
        )
        for command in (PREDICT, TUNE)
    ),
    (
        "sentence",
        lambda folder: (folder / "modules.json").unlink(),
        PREDICT,
        "it has no modules.json",
    ),
    (
        "sentence",
        lambda folder: (folder / "1_Pooling/config.json").unlink(),
        PREDICT,
        "names 1_Pooling/config.json",
    ),
    ("shards", lambda folder: min(folder.glob("model-*")).unlink(), PREDICT, "model-00001"),
    *(
        (directory, _change(lambda tensor, dtype=dtype: tensor.to(dtype)), command, "has the type")
        for directory, command in (("classify", PREDICT), ("roformer", CONVERT))
        for dtype in (torch.complex64, torch.float8_e4m3fn, torch.int8)
    ),
    ("mlm", _change(lambda tensor: None), COMMANDS["mlm"][0], "lacks model.layers.0.self_attn.q"),
    ("mlm", _change(lambda tensor: tensor[:3]), COMMANDS["mlm"][0], "has in another shape model"),
    ("roformer", _change(lambda tensor: tensor * torch.nan), CONVERT, "NaN or infinite numbers"),
    ("roformer", _set("config.json", vocab_size=310), CONVERT, "but the config says (310, "),
    ("classify", _larger_tokenizer, PREDICT, "the tokenizer has"),
    *(
        ("classify", _set("results.json", settings={"threshold": threshold}), PREDICT, "settings: ")
        for threshold in ("high", 2)
    ),
    # Names that lead out of the directory are refused before anything is read.
    ("classify", _set("config.json", transformers_weights="x"), PREDICT, "transformers_weights"),
    *(
        ("sentence", _modules(path), PREDICT, "which is not a folder of the model")
        for path in ("../elsewhere", "/elsewhere", "inside/../../elsewhere")
    ),
    # No training starts from random weights, except for those of the head.
    *(
        (directory, _change(change), TUNE, message)
        for directory, message in (("mlm", "q_proj.weight"), ("roformer", "query.weight"))
        for change in (lambda tensor: None, lambda tensor: tensor[:3])
    ),
    ("mlm", _change(lambda tensor: tensor * torch.nan), TUNE, "NaN or infinite numbers in model"),
    (
        "mlm",
        lambda folder: None,
        [*TUNE, "--config", "num_hidden_layers=3", "layer_types=null"],
        "does not fit the requested configuration",
    ),
]


@pytest.mark.parametrize("number", range(len(SILENT)))
def test_what_was_silent_or_a_traceback(number, place, capsys):
    directory, damage, command, message = SILENT[number]
    status, messages, _ = run(place, directory, damage, command, capsys)
    assert status == 2
    assert message in messages
    assert not Path("out").exists()


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("directory", "command"), [("mlm", PREDICT), ("mlm", TUNE), ("roformer", CONVERT)]
)
def test_nothing_is_unpickled(directory, command, place, tmp_path, capsys):
    """Only tensors are read from a file of torch, so that no code in it is run."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save({"weight": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")

    status, _, _ = run(place, directory, damage, command, capsys)
    assert status == 2
    assert not (tmp_path / "ran").exists() and not Path("out").exists()
