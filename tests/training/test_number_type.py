"""float32 or bfloat16: the trial changes nothing but the type, and a continued training keeps what it began with."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.training import number_type
from roformer_lite.training.clock import TrainingClock

MODEL = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "hidden_dropout=0.1 --disable_tqdm true --learning_rate 3e-3 --per_device_train_batch_size 4 "
    "--max_steps 6 --save_strategy steps --save_steps 2 --eval_strategy no --logging_steps 4 --baselines false "
    "--vocab_size 300 --word_dropout 0.1"
).split()
WAYS = {
    "causal": "causal --train_file rows.txt --line_by_line true",
    "stream": "causal --streaming true --train_file rows.txt --line_by_line true --packing 32",
    "by-tokens": "seq2seq --train_file rows.tsv --max_tokens_per_batch 60",
}
HALF = pytest.mark.skipif(not number_type.multiplies_bfloat16(), reason="the processor does not multiply bfloat16")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    rows = [f"{a} {b} {c}" for a in "abc" for b in ("house", "tree", "bird") for c in ("red", "old", "two")]
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n", "utf-8")
    (tmp_path / "rows.tsv").write_text("source\ttarget\n" + "".join(f"{r}\t{r[::-1]}\n" for r in rows), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(number_type, "MIN_STEPS", 6)
    return tmp_path


def train(way: str, name: str, *options: str) -> int:
    return main(["train", *WAYS[way].split(), *MODEL, *options, "--output_dir", name])


def same_weights(first: str, second: str) -> bool:
    one, two = (load_file(f"{name}/model.safetensors") for name in (first, second))
    return all(torch.equal(one[name], two[name]) for name in one)


@HALF
@pytest.mark.slow
@pytest.mark.parametrize("way", ["causal", "stream", "by-tokens"])
def test_the_trial_changes_nothing_but_the_type(way, monkeypatch, capsys):
    for least, bf16, said in ((1e9, "false", "training in float32"), (0, "true", "training in bfloat16")):
        monkeypatch.setattr(number_type, "MIN_GAIN", least)
        assert train(way, f"tried-{bf16}") == 0
        assert said in capsys.readouterr().err
        assert train(way, f"told-{bf16}", "--bf16", bf16) == 0
        assert "Tried" not in capsys.readouterr().err
        assert same_weights(f"tried-{bf16}", f"told-{bf16}")
        results = json.loads(Path(f"tried-{bf16}/results.json").read_text("utf-8"))
        assert results["training"]["arguments"].get("bf16", False) is (bf16 == "true")
    assert not same_weights("told-false", "told-true")
    assert {tensor.dtype for tensor in load_file("told-true/model.safetensors").values()} == {torch.float32}


@HALF
def test_the_figures_are_those_of_the_saved_model(capsys):
    files = ["--validation_file", "rows.tsv", "--generation_num_beams", "2", "--eval_strategy", "epoch"]
    assert train("by-tokens", "model", "--bf16", "true", *files) == 0
    noted = json.loads(Path("model/results.json").read_text("utf-8"))["metrics"]["validation"]
    assert main(["evaluate", "model", "--test_file", "rows.tsv", "--output_dir", "measured"]) == 0
    measured = json.loads(Path("measured/results.json").read_text("utf-8"))["metrics"]["test"]
    assert noted == pytest.approx(measured, rel=1e-6)


@HALF
def test_a_continued_training_keeps_its_type(monkeypatch, capsys):
    def interrupt(clock, args, state, control, **kwargs) -> None:
        if state.global_step == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(number_type, "MIN_GAIN", 0)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert train("causal", "model") == 130
    monkeypatch.setattr(number_type, "MIN_GAIN", 1e9)
    capsys.readouterr()
    assert train("causal", "model") == 0
    error = capsys.readouterr().err
    assert "Resuming from step 4" in error and "Tried" not in error
    assert train("causal", "whole", "--bf16", "true") == 0
    assert same_weights("model", "whole")


def test_short_trainings_are_not_tried(monkeypatch, capsys):
    monkeypatch.setattr(number_type, "MIN_STEPS", 7)
    monkeypatch.setattr(number_type, "gain_of_bfloat16", lambda trainer: pytest.fail("tried"))
    assert train("causal", "model") == 0
    assert "Tried" not in capsys.readouterr().err
    assert os.path.isfile("model/model.safetensors")
