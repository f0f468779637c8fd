"""Every file that a command reads, with bits flipped, cut off, of other contents, with wrong
fields, missing, and a directory in its place: one sentence that names the file, or a right result.
A sample of them each time, many with the slow tests."""

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
# By directory: the commands that read it. What of it they don't use may be damaged.
COMMANDS = {
    "classify": [PREDICT, EVALUATE, ["bundle", "{}", "out"], ["export", "{}", "out"]],
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
}
GENERATION |= {"num_return_sequences": 1, "min_length": 0}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """What the commands read, all of it right."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("lines.txt").write_text("one two\n\nthree\n")
        Path("rows.csv").write_text("text,label\n" + "one two,a\nthree four,b\n" * 8)
        for kind in ("classify", "tag", "causal", "seq2seq", "embed", "roformer"):
            save_model(kind, Path({"roformer": "mlm", "embed": "encoder"}.get(kind, kind)))
        for kind in ("causal", "seq2seq"):
            _set("generation_config.json", **GENERATION)(Path(kind))
        names = {
            f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")
        }
        # as older versions of transformers do
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
    """Exit status, messages and the printed lines of a command after the damage."""
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


@pytest.mark.parametrize(
    "number", [1, pytest.param(8, marks=pytest.mark.slow)], ids=["sample", "many"]
)
@pytest.mark.parametrize("directory", COMMANDS)
def test_damaged_files(directory, number, place, tmp_path, capsys, monkeypatch):
    """One error that names the file, or a result. Of damaged weights it must be the very same;
    sound files that lack a tensor are refused."""
    monkeypatch.chdir(tmp_path)
    for data in ("lines.txt", "rows.csv"):
        shutil.copy(place / data, tmp_path)
    files = [path for path in (place / directory).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(place / directory)) for path in files)
    wrong, chance = [], random.Random(f"{number} {directory}")
    for command in COMMANDS[directory]:
        if command[0] == "export" and number == 1:  # ten seconds each
            continue
        has_result = command[0] == "predict"
        expected = (
            run(place, directory, lambda folder: None, command, capsys) if has_result else None
        )
        assert not has_result or expected[0] == 0
        for file in names if number > 1 else chance.sample(names, 3):
            possible = list(damages(place / directory, file, number))
            is_exact = has_result and file == WEIGHTS
            count = 4 * number if has_result else number
            if command[0] == "export":  # Those that succeed take seconds.
                count = 2
            for name, damage in chance.sample(possible, min(count, len(possible))):
                try:
                    status, messages, result = run(place, directory, damage, command, capsys)
                except BaseException as error:
                    status, messages = 1, f"{type(error).__name__}: {error}"
                if status not in (0, 2) or (status == 0 and is_exact and result != expected[2]):
                    wrong.append(f"{command[0]} {directory}, {name}: {status} {messages[-300:]}")
                elif status == 0 and has_result and result.count(b"\n") != 3:
                    wrong.append(f"{directory}, {name}: {result}")
    assert not wrong, "\n".join(wrong)


def _set(file: str, **fields) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_text(
            json.dumps({**json.loads((folder / file).read_text()), **fields})
        )

    return damage


def _as_type(dtype: torch.dtype) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        name = next(name for name in tensors if "q_proj" in name or "query.weight" in name)
        save_file(
            {**tensors, name: tensors[name].to(dtype)}, folder / WEIGHTS, metadata={"format": "pt"}
        )

    return damage


def _catastrophic(folder: Path) -> None:
    pipeline = json.loads((folder / "tokenizer.json").read_text())
    pipeline["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(?<n>a\\g<n>?)*$"}
    (folder / "tokenizer.json").write_text(json.dumps(pipeline))
    Path("lines.txt").write_text("a" * 60 + "!\n")


STRANGE = (torch.complex64, torch.float8_e4m3fn, torch.int8)
VERIFY, CONVERT = COMMANDS["roformer"][1], COMMANDS["roformer"][0]
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
SILENT = [  # what the libraries below accept, or end the process at
    *(
        (
            "classify",
            _set("config.json", pad_token_id=7),
            command,
            "pad_token_id=7, which the tokenizer calls",
        )
        for command in (PREDICT, ["export", "{}", "out"], EVALUATE, TUNE)
    ),
    ("causal", _set("config.json", pad_token_id=7), ["serve", "{}"], "pad_token_id=7"),
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
    *(("classify", _as_type(dtype), PREDICT, "has other numbers than F64") for dtype in STRANGE),
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
    for name in (directory, "lines.txt", "rows.csv"):
        (shutil.copytree if (place / name).is_dir() else shutil.copy)(place / name, tmp_path / name)
    damage(Path(directory))
    assert main([part.replace("{}", directory) for part in command]) == 2
    assert message in capsys.readouterr().err
    assert not Path("out").exists()
