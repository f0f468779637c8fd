"""Run by test_hub.py: the real client of huggingface_hub, against the Hub that HF_ENDPOINT names.

python session_hub.py FOLDER
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import torch
from conftest import build, seq2seq_config, stack_config
from huggingface_hub import HfApi, ModelCard, hf_hub_download
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    GenerationConfig,
    Trainer,
    TrainingArguments,
)

from hf_roformer_lite import RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM, RoFormerLiteTokenizer
from roformer_lite.cli import main

FOLDER = Path(sys.argv[1])
TEXTS = ["a house", "the dog"]
API = HfApi()


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def model_and_tokenizer(tokenizer: RoFormerLiteTokenizer) -> None:
    """Up and down again: weights, tokenizer, both configs; a private repository, older commits, branches."""
    config = seq2seq_config()
    config.encoder.vocab_size = config.decoder.vocab_size = 300
    model = build(RoFormerLiteForConditionalGeneration, config)
    model.generation_config.num_beams = 3
    first = model.push_to_hub("pair", remote_code=True, private=True, commit_message="The first", tags=["rope"])
    tokenizer.push_to_hub("me/pair", remote_code=True)

    loaded = AutoModelForSeq2SeqLM.from_pretrained("me/pair")
    assert type(loaded) is RoFormerLiteForConditionalGeneration and equal(loaded, model)
    model.save_pretrained(FOLDER / "pair")
    for path in (FOLDER / "pair").iterdir():
        assert Path(hf_hub_download("me/pair", path.name)).read_bytes() == path.read_bytes()
    assert GenerationConfig.from_pretrained("me/pair").num_beams == loaded.generation_config.num_beams == 3
    assert AutoTokenizer.from_pretrained("me/pair")(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert AutoConfig.from_pretrained("me/pair").remote_code
    answers = model.generate(**tokenizer(TEXTS, padding=True, return_tensors="pt"), max_new_tokens=6).tolist()
    (FOLDER / "expected.json").write_text(json.dumps({"texts": TEXTS, "answers": {"me/pair": answers}}))

    info = API.model_info("me/pair")
    assert info.private and info.library_name == "transformers" and "rope" in info.tags
    assert {"model.safetensors", "generation_config.json", "README.md"} <= set(API.list_repo_files("me/pair"))
    (weights,) = [file for file in API.list_repo_tree("me/pair") if file.path == "model.safetensors"]
    assert weights.lfs is not None and weights.size == weights.lfs.size > 10_000

    with torch.no_grad():
        next(model.parameters()).add_(1)
    second = model.push_to_hub("me/pair")
    assert second.oid != first.oid and API.model_info("me/pair").sha == second.oid
    assert equal(AutoModelForSeq2SeqLM.from_pretrained("me/pair"), model)
    assert equal(AutoModelForSeq2SeqLM.from_pretrained("me/pair", revision=first.oid), loaded)
    loaded.push_to_hub("me/pair", revision="before")
    assert equal(AutoModelForSeq2SeqLM.from_pretrained("me/pair", revision="before"), loaded)
    assert equal(AutoModelForSeq2SeqLM.from_pretrained("me/pair", local_files_only=True), model)


def trainer(tokenizer: RoFormerLiteTokenizer) -> None:
    """`push_to_hub=True` of transformers' own Trainer; the code goes with it when the model says so."""
    model = build(RoFormerLiteForMaskedLM, stack_config(vocab_size=300))
    model.remote_code = tokenizer.remote_code = True
    arguments = TrainingArguments(
        str(FOLDER / "trained"),
        push_to_hub=True,
        hub_model_id="me/trained",
        hub_strategy="end",
        max_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [dict(tokenizer(text)) for text in TEXTS * 4]
    collator = DataCollatorForLanguageModeling(tokenizer)
    run = Trainer(model, arguments, collator, rows, processing_class=tokenizer)
    run.train()
    run.push_to_hub()
    assert equal(AutoModelForMaskedLM.from_pretrained("me/trained"), model)
    assert {"training_args.bin", "tokenizer.json", "heads_roformer_lite.py"} <= set(API.list_repo_files("me/trained"))


def card() -> None:
    """What `roformer-lite train` writes and uploads stays when parts are uploaded again."""
    (FOLDER / "reviews.csv").write_text("text,label\n" + "it's a fine film,good\nfar too long,bad\n" * 8, "utf-8")
    files = ["--train_file", str(FOLDER / "reviews.csv"), "--validation_file", str(FOLDER / "reviews.csv")]
    small = "--size tiny --config num_hidden_layers=1 hidden_size=32 --vocab_size 300 --max_steps 2 --use_cpu true"
    about = "--push_to_hub --remote_code --license apache-2.0 --language en --datasets me/reviews --disable_tqdm true"
    output = ["--card_example", "--output_dir", str(FOLDER / "reviews")]
    token = os.environ["HF_TOKEN"]
    assert main(["train", "classify", *files, *small.split(), *about.split(), *output]) == 0
    for path in (FOLDER / "reviews").iterdir():
        assert token.encode() not in path.read_bytes()
        there = Path(hf_hub_download("me/reviews", path.name)).read_bytes()
        assert there == path.read_bytes(), path
    written = ModelCard.load(FOLDER / "reviews" / "README.md")
    assert len(written.data.eval_results) == 2 and written.data.datasets == ["me/reviews"]
    (snippet,) = re.findall(r"```python\n(.*?)```", written.text, re.DOTALL)
    (FOLDER / "snippet.py").write_text(snippet, "utf-8")
    (command,) = re.findall(r"```bash\n(echo .*)\n```", written.text)
    echo, line, *rest = shlex.split(command)  # as a shell takes it
    assert (echo, rest) == ("echo", ["|", "roformer-lite", "predict", "me/reviews"])
    assert line in ("it's a fine film", "far too long")  # a row of the data, asked for by --card_example
    (FOLDER / "line.txt").write_text(line, "utf-8")
    predict = ["predict", "me/reviews", "--input_file", str(FOLDER / "line.txt")]
    assert main([*predict, "--output_file", str(FOLDER / "answer.txt")]) == 0
    assert (FOLDER / "answer.txt").read_text().split("\t")[0] in ("good", "bad")

    AutoTokenizer.from_pretrained("me/reviews").push_to_hub("me/reviews")
    AutoModelForSequenceClassification.from_pretrained("me/reviews").push_to_hub("me/reviews", tags=["added"])
    kept = ModelCard.load("me/reviews")
    assert kept.text == written.text and kept.data.tags == [*written.data.tags, "added"]
    kept.data.tags = written.data.tags
    assert kept.data.to_dict() == written.data.to_dict()


if __name__ == "__main__":
    trained = RoFormerLiteTokenizer.train([*TEXTS, "the houses"] * 5, vocab_size=300, show_progress=False)
    model_and_tokenizer(trained)
    trainer(trained)
    card()
