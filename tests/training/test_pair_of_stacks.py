"""An encoder–decoder of an encoder and a causal model that were trained before."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BertTokenizer

from roformer_lite.cli import main

TEXT = ["a house stands", "two dogs run home", "the red house is small", "one bird sings"]
TINY = "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1".split()
COMMON = "--disable_tqdm true --use_cpu true --training_arguments save_strategy=no".split()
UNCHANGED = "--learning_rate 0 --weight_decay 0 --max_steps 1".split()
TABLE = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Texts and pairs, an encoder and a decoder that were trained on them, and a decoder with another vocabulary."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "text.txt").write_text("\n".join(TEXT * 10) + "\n", "utf-8")
    rows = "".join(f"{text}\t{text.upper()}\n" for text in TEXT * 10)
    (folder / "pairs.tsv").write_text("source\ttarget\n" + rows, "utf-8")
    text = ["--train_file", folder / "text.txt", "--line_by_line", "true", "--max_steps", 2, "--block_size", 16]
    train("mlm", folder / "encoder", *text, *TINY, "--vocab_size", 300)
    train("causal", folder / "decoder", *text, *TINY, "--tokenizer", folder / "encoder")
    train("causal", folder / "other", *text, *TINY, "--vocab_size", 290)
    return folder


def train(task: str, out: Path, *options: str | Path | int, status: int = 0) -> Path:
    typed = ["train", task, "--output_dir", out, *COMMON, *options]
    assert main([str(option) for option in typed]) == status
    return out


def tensors(model: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    stored = load_file(model / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return bool(theirs) and all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.slow
def test_encoder_below_a_new_decoder(folder, tmp_path, capsys):
    start = ["--train_file", folder / "pairs.tsv", "--encoder_name_or_path", folder / "encoder"]
    out = train("seq2seq", tmp_path / "m", *start, "--size", "tiny", *UNCHANGED)
    pair, config = tensors(out), json.loads((out / "config.json").read_text("utf-8"))
    assert config["share_embeddings"] and config["decoder"]["hidden_size"] == 128
    encoder = tensors(folder / "encoder", "model.")
    table = encoder.pop(TABLE)
    assert torch.equal(pair[f"model.decoder.{TABLE}"], table)  # the one that both sides and the LM head share
    assert same(tensors(out, "model.encoder."), encoder)
    results = json.loads((out / "results.json").read_text("utf-8"))
    assert results["training"]["own_weights"] and "learning_rate" not in results["training"]["fine_tuning_defaults"]
    card = (out / "README.md").read_text("utf-8")
    assert "Trained from the weights of encoder on pairs.tsv" in card
    capsys.readouterr()
    (tmp_path / "lines.txt").write_text("a house\n", "utf-8")
    assert main(["predict", str(out), "--input_file", str(tmp_path / "lines.txt")]) == 0


def test_encoder_below_a_causal_model(folder, tmp_path, capsys):
    start = ["--train_file", folder / "pairs.tsv", "--encoder_name_or_path", folder / "encoder"]
    out = train("seq2seq", tmp_path / "m", *start, "--decoder_name_or_path", folder / "decoder", *UNCHANGED)
    assert same(tensors(out, "model.encoder."), tensors(folder / "encoder", "model."))
    decoder, pair = tensors(folder / "decoder", "model."), tensors(out, "model.decoder.")
    assert same(pair, decoder)
    new = pair.keys() - decoder.keys()
    assert new and all(".cross_attn" in name for name in new)
    assert f"the pair has {len(new)} tensors that are new" in capsys.readouterr().err


def test_converted_encoder(folder, tmp_path):
    words = sorted({word for text in TEXT for word in f"{text} {text.upper()}".split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), "utf-8")
    BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False).save_pretrained(tmp_path / "bert")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    BertModel(BertConfig(vocab_size=5 + len(words), **sizes)).save_pretrained(tmp_path / "bert")
    assert main(["convert", "--from", "auto", str(tmp_path / "bert"), str(tmp_path / "ours")]) == 0
    start = ["--train_file", folder / "pairs.tsv", "--encoder_name_or_path", tmp_path / "ours", "--size", "tiny"]
    out = train("seq2seq", tmp_path / "m", *start, *UNCHANGED)
    config, bert = json.loads((out / "config.json").read_text("utf-8")), tensors(tmp_path / "bert")
    assert config["encoder"]["norm_placement"] == "post" and config["decoder"]["norm_placement"] == "pre"
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (2, 3)
    ours = tensors(out, "model.encoder.layers.0.")
    assert torch.equal(ours["mlp.up_proj.weight"], bert["encoder.layer.0.intermediate.dense.weight"])
    assert torch.equal(tensors(out)[f"model.decoder.{TABLE}"], bert[TABLE])


REFUSED = [
    ("--encoder_name_or_path encoder --decoder_name_or_path other", "both sides of a pair need one vocabulary"),
    ("--encoder_name_or_path decoder", "it is causal; give it as --decoder_name_or_path"),
    ("--encoder_name_or_path encoder --decoder_name_or_path encoder", "it is no causal model"),
    ("--decoder_name_or_path decoder", "--decoder_name_or_path needs --encoder_name_or_path beside it"),
    ("--encoder_name_or_path encoder --vocab_size 9", "--vocab_size 9 has no effect beside --encoder_name_or_path"),
    ("--encoder_name_or_path encoder --decoder_name_or_path decoder --size tiny", "--size tiny has no effect beside"),
    ("--encoder_name_or_path encoder --model_name_or_path decoder", "give either --model_name_or_path or"),
    ("--encoder_name_or_path encoder --config encoder.hidden_size=64", "give only --config fields that change no"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals(options, message, folder, tmp_path, capsys):
    typed = [folder / word if word in ("encoder", "decoder", "other") else word for word in options.split()]
    train("seq2seq", tmp_path / "m", "--train_file", folder / "pairs.tsv", *typed, status=2)
    assert message in " ".join(capsys.readouterr().err.split())


def test_masked_language_model_then_every_task(folder, tmp_path):
    """The encoder's layers are the beginning of a classifier and of a tagger; of a pair the tests above."""
    (tmp_path / "rows.csv").write_text("text,label\n" + "a house,x\ntwo dogs,y\n" * 10, "utf-8")
    (tmp_path / "tags.iob2").write_text("Anna B-PER\nruns O\n\n" * 20, "utf-8")
    for task, file in (("classify", "rows.csv"), ("tag", "tags.iob2")):
        start = ["--train_file", tmp_path / file, "--model_name_or_path", folder / "encoder"]
        out = train(task, tmp_path / task, *start, *UNCHANGED)
        assert same(tensors(out, "model."), tensors(folder / "encoder", "model."))
        shutil.rmtree(out)
