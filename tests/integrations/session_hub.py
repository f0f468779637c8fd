"""The real client of huggingface_hub uploads to the Hub that HF_ENDPOINT names, and reads it back.

test_hub.py runs `python session_hub.py FOLDER`.
"""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import torch
from conftest import build, seq2seq_config
from huggingface_hub import HfApi, ModelCard, ModelCardData, hf_hub_download
from saved_models import TEXTS as MODEL_TEXTS
from saved_models import save_model
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from hf_roformer_lite import RoFormerLiteForConditionalGeneration, RoFormerLiteTokenizer
from roformer_lite.cli import main

FOLDER = Path(sys.argv[1])
TEXTS = ["a house", "the dog"]
TASKS = {
    "tag": "token-classification",
    "mlm": "fill-mask",
    "causal": "text-generation",
    "embed": "feature-extraction",
}
FILM = "it's a fine film"


def model_and_tokenizer(tokenizer: RoFormerLiteTokenizer) -> None:
    """Weights, tokenizer, configuration and code go to a private repository, and come back."""
    config = seq2seq_config()
    config.encoder.vocab_size = config.decoder.vocab_size = 300
    model = build(RoFormerLiteForConditionalGeneration, config)
    model.push_to_hub(
        "pair", remote_code=True, private=True, commit_message="The first", tags=["rope"]
    )
    tokenizer.push_to_hub("me/pair", remote_code=True)
    loaded = AutoModelForSeq2SeqLM.from_pretrained("me/pair")
    assert (
        type(loaded) is RoFormerLiteForConditionalGeneration
        and AutoConfig.from_pretrained("me/pair").remote_code
    )
    weights = zip(loaded.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    again = AutoTokenizer.from_pretrained("me/pair")
    assert again(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    info = HfApi().model_info("me/pair")
    assert info.private and info.library_name == "transformers" and "rope" in info.tags
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    answers = model.generate(**inputs, max_new_tokens=6, num_beams=2).tolist()
    expected = {"texts": TEXTS, "answers": {"me/pair": answers}}
    (FOLDER / "expected.json").write_text(json.dumps(expected))


def card() -> None:
    """The card that `roformer-lite train` uploads stays when parts are uploaded again."""
    (FOLDER / "reviews.csv").write_text(
        "text,label\n" + f"{FILM},good\nfar too long,bad\n" * 8, "utf-8"
    )
    reviews = str(FOLDER / "reviews.csv")
    files = ["--train_file", reviews, "--validation_file", reviews]
    small = (
        "--size tiny --config num_hidden_layers=1 hidden_size=32 --vocab_size 300 --max_steps 2 "
        "--use_cpu true"
    )
    about = (
        "--push_to_hub --remote_code --license apache-2.0 --language en --datasets me/reviews "
        "--disable_tqdm true"
    )
    output = ["--card_example", "--output_dir", str(FOLDER / "reviews")]
    assert main(["train", "classify", *files, *small.split(), *about.split(), *output]) == 0
    folder = FOLDER / "reviews"
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / "baseline" / "baseline.safetensors" in paths
    for path in paths:
        assert os.environ["HF_TOKEN"].encode() not in path.read_bytes()
        downloaded = Path(hf_hub_download("me/reviews", str(path.relative_to(folder))))
        assert downloaded.read_bytes() == path.read_bytes(), path
    written = ModelCard.load(FOLDER / "reviews" / "README.md")
    data = written.data
    assert len(data.eval_results) == 2
    assert data.datasets == ["me/reviews"]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-classification")
    assert (data.license, data.language) == ("apache-2.0", ["en"])
    # These classes of huggingface_hub check the fields that the Hub reads.
    assert ModelCardData(**data.to_dict()).to_yaml() == data.to_yaml()
    weights = HfApi().get_safetensors_metadata("me/reviews").files_metadata["model.safetensors"]
    assert weights.metadata == {"format": "pt"}
    (snippet,) = re.findall(r"```python\n(.*?)```", written.text, re.DOTALL)
    (FOLDER / "snippet.py").write_text(snippet, "utf-8")
    (command,) = re.findall(r"```bash\n(echo .*)\n```", written.text)
    # The command is split as a shell would split it.
    echo, line, *rest = shlex.split(command)
    assert (echo, rest) == ("echo", ["|", "roformer-lite", "predict", "me/reviews"])
    # The option `--card_example` makes the card show a row of the data.
    assert line == FILM
    (FOLDER / "line.txt").write_text(line, "utf-8")
    predict = ["predict", "me/reviews", "--input_file", str(FOLDER / "line.txt")]
    assert main([*predict, "--output_file", str(FOLDER / "answer.txt")]) == 0
    assert (FOLDER / "answer.txt").read_text().split("\t")[0] in ("good", "bad")

    AutoModelForSequenceClassification.from_pretrained("me/reviews").push_to_hub(
        "me/reviews", tags=["added"]
    )
    kept = ModelCard.load("me/reviews")
    assert kept.text == written.text and kept.data.tags == [*written.data.tags, "added"]


def pipelines() -> None:
    """Write the answers of pipelines for saved models, and upload these models with their code.

    Only their cards say which pipeline they belong to."""
    expected = {"me/reviews": [FILM, pipeline(model="me/reviews")(FILM)]}
    for name, task in TASKS.items():
        opened = pipeline(task, str(save_model(name, FOLDER / name)))
        with_code = FOLDER / f"{name} with code"
        opened.save_pretrained(with_code, remote_code=True)
        metadata = ModelCardData(library_name="transformers", pipeline_tag=task)
        ModelCard(f"---\n{metadata.to_yaml()}\n---\n").save(with_code / "README.md")
        HfApi().create_repo(f"me/{name}")
        HfApi().upload_folder(repo_id=f"me/{name}", folder_path=with_code)
        text = MODEL_TEXTS[0]
        if name == "mlm":
            text = text.replace("fine", "[MASK]")
        options = {"do_sample": False} if name == "causal" else {}
        expected[f"me/{name}"] = [text, opened(text, **options)]
    (FOLDER / "pipelines.json").write_text(json.dumps(expected, default=float))


if __name__ == "__main__":
    texts = [*TEXTS, "the houses"] * 5
    model_and_tokenizer(RoFormerLiteTokenizer.train(texts, vocab_size=300, show_progress=False))
    card()
    pipelines()
