"""Tests of damage to every file that a command reads.

Files have flipped bits, are cut, have other contents or wrong fields, are missing, or are
directories. The command must give a right result, or one sentence that names the file. A sample of
the damages is tested each time, and many in the slow tests.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from damage import (
    WEIGHTS,
    Damage,
    bit_flips,
    field_damage,
    header_damage,
    not_json,
    tensor_damage,
    truncations,
)
from safetensors.torch import load_file, save_file
from saved_models import save_model
from transformers.utils.logging import disable_progress_bar

import hf_roformer_lite as rl
from hf_roformer_lite import conversion
from roformer_lite.cli import main

PREDICT = ["predict", "{}", "--input_file", "lines.txt", "--device", "cpu"]
EVALUATE = ["evaluate", "{}", "--test_file", "rows.csv", "--device", "cpu"]
# These commands read each directory. They may ignore damage to files that they don't use.
COMMANDS = {
    "classify": [PREDICT, EVALUATE, ["export", "{}", "out"]],
    "causal": [[*PREDICT, "--max_new_tokens", "2"]],
    "tag": [PREDICT],
    "seq2seq": [PREDICT],
    "jieba": [PREDICT],
    "shards": [PREDICT],
    "sentence": [PREDICT],
    "mlm": [["convert", "{}", "out", "--to", "roformer"]],
    "roformer": [["convert", "{}", "out"], ["verify", "{}"]],
}
GENERATION = {
    "num_beams": 2,
    "temperature": 1.0,
    "top_p": 1.0,
    "cache_implementation": None,
    "do_sample": False,
    "num_return_sequences": 1,
    "min_length": 0,
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
        for kind in ("classify", "tag", "causal", "seq2seq"):
            save_model(kind, Path(kind))
        save_model("embed", Path("encoder"))
        save_model("roformer", Path("mlm"))
        for kind in ("causal", "seq2seq"):
            _set("generation_config.json", **GENERATION)(Path(kind))
        names = {
            f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")
        }
        # Older versions of transformers saved this file.
        Path("tag", "special_tokens_map.json").write_text(json.dumps(names))
        shutil.copytree("mlm", "jieba")
        vocabulary = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *"一二三",
            "one",
            "two",
            "##r",
            "f",
        ]
        tokenizer = rl.RoFormerLiteJiebaTokenizer(
            {token: number for number, token in enumerate(vocabulary)}
        )
        tokenizer.save_pretrained("jieba")
        tokenizer.save_vocabulary("jieba")
        Path("jieba", "tokenizer.json").unlink()
        shutil.copytree("classify", "shards")
        Path("shards", WEIGHTS).unlink()
        rl.RoFormerLiteForSequenceClassification.from_pretrained("classify").save_pretrained(
            "shards", max_shard_size="12KB"
        )
        conversion.export_checkpoint("roformer", "mlm", "roformer")
        _make_sentence_model("encoder", "sentence")
    return folder


def _make_sentence_model(encoder: str, folder: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    parts = [
        modules.Transformer(encoder),
        modules.Pooling(32, pooling_mode="mean"),
        modules.Dense(32, 8),
    ]
    SentenceTransformer(modules=parts).save_pretrained(folder, create_model_card=False)
    Path(folder, "results.json").write_text('{"task": "embed", "settings": {}}')


def _replace(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damages(folder: Path, file: str, seed: int) -> Iterator[tuple[str, Damage]]:
    yield from truncations(file)
    if file == WEIGHTS:
        yield from header_damage(9, seed)
        yield from tensor_damage(seed)
    else:
        yield from bit_flips(file, 20, seed)
    yield f"{file} missing", lambda folder: (folder / file).unlink()
    yield f"{file} a directory", lambda folder: _replace(folder / file)
    if file.endswith(".json"):
        yield from not_json(file)
        fields = json.loads((folder / file).read_text())
        yield from field_damage(file, fields if isinstance(fields, dict) else {}, 2, seed)


def run(
    place: Path, directory: str, damage: Damage, command: list[str], capsys
) -> tuple[int, str, bytes]:
    """Run a command after the damage, and return its status, its messages and its output.

    The status is 1 if the command fails without one error that names the directory.
    """
    read = Path(directory)
    for left in ("out", read):
        shutil.rmtree(left, ignore_errors=True)
    shutil.copytree(place / directory, read)
    damage(read)
    capsys.readouterr()
    status = main([part.replace("{}", str(read)) for part in command])
    printed = capsys.readouterr()
    errors = [line for line in printed.err.splitlines() if "error: " in line]
    if status == 2 and (len(errors) != 1 or str(read) not in errors[0]):
        status = 1
    return status, printed.err, printed.out.encode()


def output_without_damage(place: Path, directory: str, command: list[str], capsys) -> bytes | None:
    """Return the output of a command whose output is compared, which is only `predict`."""
    if command[0] != "predict":
        return None
    status, _, output = run(place, directory, lambda folder: None, command, capsys)
    assert status == 0
    return output


def number_of_damages(command: list[str], number: int) -> int:
    """Return how many damages of a file a command is tried with."""
    if command[0] == "export":
        # Exports that succeed take seconds.
        return 2
    if command[0] == "predict":
        return 4 * number
    return number


def problem_after(
    place: Path,
    directory: str,
    damage: Damage,
    command: list[str],
    capsys,
    has_result: bool,
    expected: bytes | None,
) -> str:
    """Run a command after the damage, and describe what goes wrong.

    The description is empty if nothing goes wrong. A command with a result must print three lines,
    and exactly `expected` if this is given.
    """
    try:
        status, messages, output = run(place, directory, damage, command, capsys)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[-300:]
    if status not in (0, 2):
        return f"{status} {messages[-300:]}"
    if status == 0 and expected is not None and output != expected:
        return f"another output, {messages[-300:]}"
    if status == 0 and has_result and output.count(b"\n") != 3:
        return f"not three lines, {output!r}"
    return ""


@pytest.mark.parametrize(
    "number", [1, pytest.param(8, marks=pytest.mark.slow)], ids=["sample", "many"]
)
@pytest.mark.parametrize("directory", COMMANDS)
def test_damaged_files(directory, number, place, tmp_path, capsys, monkeypatch):
    """A command gives one error that names the file, or a result.

    With damaged weights the result must be exactly the same. Files that lack a tensor are refused,
    even if they can be read.
    """
    monkeypatch.chdir(tmp_path)
    for data in ("lines.txt", "rows.csv"):
        shutil.copy(place / data, tmp_path)
    files = [path for path in (place / directory).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(place / directory)) for path in files)
    wrong = []
    chance = random.Random(f"{number} {directory}")
    for command in COMMANDS[directory]:
        # An export takes ten seconds.
        if command[0] == "export" and number == 1:
            continue
        whole_output = output_without_damage(place, directory, command, capsys)
        damaged_files = names if number > 1 else chance.sample(names, 3)
        for file in damaged_files:
            possible = list(damages(place / directory, file, number))
            count = min(number_of_damages(command, number), len(possible))
            for name, damage in chance.sample(possible, count):
                problem = problem_after(
                    place,
                    directory,
                    damage,
                    command,
                    capsys,
                    has_result=whole_output is not None,
                    expected=whole_output if file == WEIGHTS else None,
                )
                if problem:
                    wrong.append(f"{command[0]} {directory}, {name}: {problem}")
    assert not wrong, "\n".join(wrong)


def _set(file: str, **fields) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**content, **fields}))

    return damage


def _as_type(dtype: torch.dtype) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        name = next(name for name in tensors if "q_proj" in name or "query.weight" in name)
        tensors[name] = tensors[name].to(dtype)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def _catastrophic(folder: Path) -> None:
    """Make the tokenizer match a regular expression that takes too long for the text."""
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    pipeline["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(?<n>a\\g<n>?)*$"}
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    Path("lines.txt").write_text("a" * 60 + "!\n")


STRANGE = (torch.complex64, torch.float8_e4m3fn, torch.int8)
CONVERT, VERIFY = COMMANDS["roformer"]
TUNE = [
    "train",
    "classify",
    "--train_file",
    "rows.csv",
    "--model_name_or_path",
    "{}",
    "--use_cpu",
    "--max_length",
    "16",
    "--output_dir",
    "out",
]
# Without a check, libraries would accept these files, or end the process.
SILENT = [
    *(
        (
            "classify",
            _set("config.json", pad_token_id=7),
            command,
            "pad_token_id=7, which the tokenizer calls",
        )
        for command in (PREDICT, ["export", "{}", "out"], EVALUATE, TUNE)
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
    *(("classify", _as_type(dtype), PREDICT, "has the type torch.") for dtype in STRANGE),
    *(("mlm", _as_type(dtype), COMMANDS["mlm"][0], "has the type torch.") for dtype in STRANGE),
    *(("roformer", _as_type(dtype), VERIFY, "has the type torch.") for dtype in STRANGE[:2]),
    *(
        ("roformer", _set("config.json", vocab_size=310), command, "but the config says (310, ")
        for command in (VERIFY, CONVERT)
    ),
    (
        "roformer",
        _set("config.json", max_position_embeddings=3),
        VERIFY,
        "size mismatch for roformer.encoder.embed",
    ),
    ("classify", _catastrophic, PREDICT, "the tokenizer cannot encode one of the texts"),
]


@pytest.mark.parametrize("number", range(len(SILENT)))
def test_what_was_silent_or_a_traceback(number, place, tmp_path, capsys, monkeypatch):
    directory, damage, command, message = SILENT[number]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / directory, tmp_path / directory)
    for name in ("lines.txt", "rows.csv"):
        shutil.copy(place / name, tmp_path / name)
    damage(Path(directory))
    assert main([part.replace("{}", directory) for part in command]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
