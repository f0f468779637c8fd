"""Checkpoint directories, read and written: no partial output, no code executed, tokenizers included."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from conversion_cases import CASES, source_weights
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from hf_roformer_lite import RoFormerLiteJiebaTokenizer, RoFormerLiteTokenizer
from hf_roformer_lite.conversion import CONVERTERS, ConversionError, convert_checkpoint, export_checkpoint
from roformer_lite.cli import main


def write_checkpoint(folder: Path, config: dict, weights: dict, form: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    if form == "safetensors":
        save_file(weights, folder / "model.safetensors")
    elif form in ("bin", "old-bin"):
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "bin")
    else:
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, part in shards.items():
            save_file({name: weights[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_directories(tmp_path):
    """Every form of files becomes a directory that a new process opens, with the same numbers."""
    config, forms = CASES["roformer"][1], ["safetensors", "bin", "old-bin", "shards"]
    _, weights = source_weights("roformer", config)
    del weights["cls.predictions.decoder.weight"], weights["cls.predictions.decoder.bias"]  # tied
    for form in forms:
        (tmp_path / form).mkdir()
        source = write_checkpoint(tmp_path / form / "source", config, weights, form)
        model = convert_checkpoint("roformer", source, tmp_path / form / "out")
        assert sorted(path.name for path in (tmp_path / form).iterdir()) == ["out", "source"]
        assert "lm_head.weight" not in load_file(tmp_path / form / "out" / "model.safetensors")
    code = (
        "import sys, torch, hf_roformer_lite; from transformers import AutoModelForMaskedLM as A;"
        "ids = torch.arange(1, 9)[None];"
        "[print(A.from_pretrained(path)(ids).logits.double().sum().item()) for path in sys.argv[1:]]"
    )
    arguments = [sys.executable, "-c", code, *(str(tmp_path / form / "out") for form in forms)]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()
    expected = model(torch.arange(1, 9)[None]).logits.double().sum().item()
    assert [float(number) for number in printed] == pytest.approx([expected] * len(forms), rel=1e-6)


def test_half_precision_stays(tmp_path):
    config = CASES["bert"][0]
    _, weights = source_weights("bert", config)
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    write_checkpoint(tmp_path / "source", config, half, "safetensors")
    convert_checkpoint("bert", tmp_path / "source", tmp_path / "out")
    assert AutoModel.from_pretrained(tmp_path / "out").dtype == torch.float16


MEASURE = """
import sys, threading, time
from pathlib import Path
from hf_roformer_lite.conversion import convert_checkpoint, export_checkpoint

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before, peak = resident(), 0

def watch():
    global peak
    while True:
        peak = max(peak, resident())
        time.sleep(0.001)

threading.Thread(target=watch, daemon=True).start()
convert_checkpoint("auto", sys.argv[1], sys.argv[2])
print(peak - before)
"""


LARGE = {"vocab_size": 30000, "num_hidden_layers": 4, "hidden_size": 768, "num_attention_heads": 12}
LARGE |= {"intermediate_size": 3072}
LARGE_PAIR = {"vocab_size": 30000, "d_model": 768, "encoder_layers": 2, "decoder_layers": 2}
STREAMED = {
    "roformer": {},
    "roformer_v2": {"norm_type": "rms_norm", "use_bias": False},
    "nomic_bert": {},  # its files hold queries, keys and values in one
    "modernbert": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    "neobert": {"architectures": ["NeoBERT"]},
    "llama": {"head_dim": 64},
    "gpt_neox": {"use_parallel_residual": False},
    "roberta": {},
    "esm": {"position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 5},
    "bart": LARGE_PAIR,
}


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc/self/statm")
@pytest.mark.parametrize(
    "name", [name if name == "roformer" else pytest.param(name, marks=pytest.mark.slow) for name in STREAMED]
)
def test_weights_are_streamed(name, tmp_path):
    """The whole model and one shard more is the most that a conversion holds."""
    config = {**({} if name == "bart" else LARGE), **STREAMED[name]}
    reference, _ = source_weights(name, {"architectures": [CONVERTERS[name].class_name("Model")], **config})
    reference.save_pretrained(tmp_path / "source", max_shard_size="40MB")
    size = sum(path.stat().st_size for path in (tmp_path / "source").glob("*.safetensors"))
    del reference
    arguments = [sys.executable, "-c", MEASURE, str(tmp_path / "source"), str(tmp_path / "out")]
    peak = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()[-1])
    print(f"{name}: {size / 1e6:.0f} MB, {peak / size:.2f} times as much at the peak")
    assert size > 150e6 and 0.5 * size < peak <= 1.3 * size


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_failures_leave_no_output_and_run_no_code(tmp_path):
    config = CASES["bert"][0]
    _, weights = source_weights("bert", config)
    source = write_checkpoint(tmp_path / "source", config, {**weights, "strange": torch.zeros(1)}, "safetensors")
    with pytest.raises(ConversionError, match="unknown strange"):
        convert_checkpoint("bert", source, tmp_path / "out")
    (source / "model.safetensors").unlink()
    with pytest.raises(ConversionError, match="has no weights"):
        convert_checkpoint("bert", source, tmp_path / "out")
    torch.save({"weight": Evil()}, source / "pytorch_model.bin")
    with pytest.raises(ConversionError, match="weights_only"):
        convert_checkpoint("bert", source, tmp_path / "out")
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionError, match="outside its directory"):
        convert_checkpoint("bert", source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(ConversionError, match="exists already"):
        convert_checkpoint("bert", source, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


def test_command_line(tmp_path, capsys):
    config = CASES["bert"][2]
    _, weights = source_weights("bert", config)
    source = write_checkpoint(tmp_path / "source", config, weights, "safetensors")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]))
    transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt")).save_pretrained(source)
    assert main(["convert", str(source), str(tmp_path / "out"), "--from", "bert"]) == 0
    assert "RoFormerLiteForMaskedLM" in capsys.readouterr().out
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("abc").input_ids[0] == 2
    assert main(["verify", str(source), "--from", "bert"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["random", "real"] * 2 and all(
        "within" in line for line in printed
    )
    assert main(["convert", str(source), str(tmp_path / "out"), "--from", "bert"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(source), str(tmp_path / "other"), "--from", "bert", "--to", "bert"]) == 2
    assert "can't be combined with --to" in capsys.readouterr().err


def test_tokenizers_are_converted_too(tmp_path):
    """RoFormer's tokenizer becomes ours and, exported, opens in stock transformers; so does one trained here."""
    config = {**CASES["roformer"][0], "vocab_size": 300, "embedding_size": 24}
    _, weights = source_weights("roformer", config)
    source = write_checkpoint(tmp_path / "source", config, weights, "safetensors")
    text = "今天天气非常好"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(text), "今天天气", "非常"]
    (source / "vocab.txt").write_text("\n".join(entries))
    convert_checkpoint("roformer", source, tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(tokenizer) is RoFormerLiteJiebaTokenizer
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    expected = transformers.RoFormerTokenizer(vocabulary)(text).input_ids
    assert tokenizer(text).input_ids == expected
    assert main(["verify", str(source), "--from", "roformer"]) == 0
    export_checkpoint("roformer", tmp_path / "ours", tmp_path / "back")
    trained = RoFormerLiteTokenizer.train(["a few words of text"] * 5, vocab_size=280)
    (tmp_path / "mine").mkdir()
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "mine" / file).write_bytes((tmp_path / "ours" / file).read_bytes())
    trained.save_pretrained(tmp_path / "mine")
    export_checkpoint("roformer", tmp_path / "mine", tmp_path / "theirs")
    code = (
        "import sys; from transformers import AutoModel, AutoTokenizer;"
        "[AutoModel.from_pretrained(path) for path in sys.argv[1:3]];"
        "print(AutoTokenizer.from_pretrained(sys.argv[1])(sys.argv[3]).input_ids);"
        "print(AutoTokenizer.from_pretrained(sys.argv[2])('a few words').input_ids);"
        "assert 'hf_roformer_lite' not in sys.modules"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "back"), str(tmp_path / "theirs"), text]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [json.loads(line) for line in printed] == [expected, trained("a few words").input_ids]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feature_dim": 7}, "head_dim=7 .*even number"),
        ({}, "needs the field 'feature_dim'"),
        ({"feature_dim": 8, "heads": 0}, "num_attention_heads=0"),
    ],
)
def test_configs_that_cannot_be_built(arguments, message, tmp_path, capsys):
    source = write_checkpoint(tmp_path / "source", arguments, {"w": torch.zeros(1)}, "safetensors")
    for command in (["convert", str(source), str(tmp_path / "out")], ["verify", str(source)]):
        assert main([*command, "--from", "deeplotx"]) == 2
        assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
