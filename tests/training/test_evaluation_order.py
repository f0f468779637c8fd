"""Predictions are compared with the references of their own rows, however the training data are sampled."""

import json

from roformer_lite.cli import main

OPTIONS = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1 "
    "hidden_dropout=0.0 --vocab_size 300 --disable_tqdm true --use_cpu true --learning_rate 5e-3 "
    "--max_target_length 16 --per_device_train_batch_size 8 --per_device_eval_batch_size 4 --max_steps 150 "
    "--eval_strategy steps --eval_steps 50 --save_strategy steps --save_steps 50 "
    "--load_best_model_at_end true --metric_for_best_model exact_match"
).split()


def test_figures_are_those_of_predict(tmp_path):
    rows = [(f"{'abcdefgh'[i % 8]} " * (1 + i % 8), f"{'stuvwxyz'[i % 8]}") for i in range(24)]
    (tmp_path / "a.tsv").write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    (tmp_path / "lines").write_text("".join(f"{source}\n" for source, _ in rows))
    files = [word for split in ("train", "validation") for word in (f"--{split}_file", str(tmp_path / "a.tsv"))]
    model = tmp_path / "m"
    options = [*OPTIONS, "--keep_checkpoints", "true", "--train_sampling_strategy", "group_by_length"]
    assert main(["train", "seq2seq", *files, *options, "--output_dir", str(model)]) == 0
    predict = ["predict", str(model), "--input_file", str(tmp_path / "lines"), "--output_file", str(tmp_path / "out")]
    assert main(predict) == 0
    answers = (tmp_path / "out").read_text().splitlines()
    right = sum(answer == target for answer, (_, target) in zip(answers, rows, strict=True)) / len(rows)
    assert right > 0.5, "so much that another order would show"
    assert json.loads((model / "results.json").read_text())["metrics"]["validation"]["exact_match"] == right
    states = [json.loads(path.read_text()) for path in tmp_path.glob("m.training/*/trainer_state.json")]
    assert max(state["best_metric"] for state in states) == right
