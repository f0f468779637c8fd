"""Conversion: the same numbers as the source, nothing unexplained, nothing left behind."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from hf_roformer_lite.conversion import CONVERTERS, convert, convert_checkpoint, export, export_checkpoint, verify
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, RoFormerConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.cli import main
from hf_roformer_lite.data_files import InputError

LAYER = {"d_model": 12, "nhead": 2, "dim_feedforward": 20}
HF = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 30}
HF |= {"max_position_embeddings": 32, "initializer_range": 0.15}
CASES: dict[str, list[dict]] = {
    "deeplotx": [
        {"feature_dim": 16, "heads": 3, "ffn_layers": 2, "proj_layers": 2, "proj_expansion": 1.5, "base": 100},
        {"feature_dim": 6, "heads": 4, "ffn_expansion": 3, "bias": False, "num_layers": 2},
        {"feature_dim": 8, "cross_attention": True},
    ],
    "prenorm-encoder-layer": [
        {"d_model": 12, "heads": 2, "d_ff": 20},
        {"d_model": 7, "heads": 2, "d_ff": 5, "num_layers": 2},
    ],
    "prenorm-decoder-layer": [
        {"d_model": 12, "heads": 3, "d_ff": 20},
        {"d_model": 12, "heads": 2, "d_ff": 9, "num_layers": 2},
    ],
    "bert-like": [HF_LIKE := {**{k: v for k, v in HF.items() if k != "initializer_range"}}],
    "walkthrough": [{"d_in": 6, "d_model": 4}],
    "scratch-seq2seq": [{"src_vocab": 30, "tgt_vocab": 40, "d_model": 12, "N": 2, "heads": 2, "d_ff": 20, "pad": 0}],
    "torch-encoder": [
        {**LAYER, "num_layers": 2},
        {**LAYER, "num_layers": 2, "norm_first": True, "activation": "gelu", "norm": True, "bias": False},
    ],
    "torch-decoder": [
        {**LAYER, "num_layers": 2, "norm": True},
        {**LAYER, "num_layers": 1, "norm_first": True, "activation": "gelu"},
    ],
    "torch-transformer": [
        {**LAYER, "num_encoder_layers": 1, "num_decoder_layers": 2},
        {**LAYER, "num_encoder_layers": 2, "num_decoder_layers": 1, "norm_first": True, "activation": "gelu"},
    ],
    "roformer": [
        {**HF, "architectures": ["RoFormerModel"], "embedding_size": 16, "rotary_value": True},
        {**HF, "architectures": ["RoFormerForMaskedLM"], "embedding_size": 16},
        {**HF, "architectures": ["RoFormerForMaskedLM"], "tie_word_embeddings": False, "hidden_act": "relu"},
        {**HF, "architectures": ["RoFormerForCausalLM"], "is_decoder": True},
        {**HF, "architectures": ["RoFormerForCausalLM"], "is_decoder": True, "add_cross_attention": True},
        {**HF, "architectures": ["RoFormerForSequenceClassification"], "rotary_value": True, "num_labels": 3},
        {**HF, "architectures": ["RoFormerForTokenClassification"], "num_labels": 5},
        {**HF, "architectures": ["RoFormerForQuestionAnswering"]},
        {**HF, "architectures": ["RoFormerForMultipleChoice"]},
        {**HF, "architectures": ["RoFormerForMultipleChoice"], "summary_type": "first"},
    ],
    "bert": [
        {**HF, "architectures": ["BertModel"]},
        {**HF, "architectures": ["BertForPreTraining"]},
        {**HF, "architectures": ["BertForMaskedLM"], "tie_word_embeddings": False},
        {**HF, "architectures": ["BertLMHeadModel"], "is_decoder": True, "add_cross_attention": True},
        {**HF, "architectures": ["BertForNextSentencePrediction"]},
        {**HF, "architectures": ["BertForSequenceClassification"], "num_labels": 3},
        {**HF, "architectures": ["BertForMultipleChoice"]},
        {**HF, "architectures": ["BertForTokenClassification"], "num_labels": 5},
        {**HF, "architectures": ["BertForQuestionAnswering"]},
    ],
}


def test_every_source_is_held_against_its_own():
    assert CASES.keys() == CONVERTERS.keys()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}-{config.get('architectures', [number])[0]}-{number}")
        for name, configs in CASES.items()
        for number, config in enumerate(configs)
    ],
)
def test_same_numbers(name, config):
    for difference in verify(name, None, config):
        assert difference.is_within, difference


def source_weights(name, config, seed=0):
    converter = CONVERTERS[name]
    torch.manual_seed(seed)
    reference = converter.reference(config).eval()
    return reference, dict(converter.reference_state_dict(reference))


@pytest.mark.parametrize(
    ("name", "config", "count"),
    [
        ("deeplotx", {"feature_dim": 512, "heads": 12, "ffn_layers": 4, "ffn_expansion": 4}, 116_033_576),
        (
            "bert-like",
            {
                "vocab_size": 30522,
                "hidden_size": 768,
                "max_position_embeddings": 512,
                "num_attention_heads": 12,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
            },
            108_890_112,
        ),
        (
            "scratch-seq2seq",
            {"src_vocab": 5000, "tgt_vocab": 5000, "d_model": 512, "N": 6, "heads": 8, "d_ff": 2048},
            51_825_544,
        ),
    ],
)
def test_parameter_counts(name, config, count):
    with torch.device("meta"):
        model = convert(name, None, config)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == count


def test_names_are_accounted_for():
    config = CASES["bert-like"][0]
    _, weights = source_weights("bert-like", config)
    with pytest.raises(InputError, match="has unknown pooler.weight"):
        convert("bert-like", {**weights, "pooler.weight": torch.zeros(1)}, config)
    lacking = {name: tensor for name, tensor in weights.items() if not name.startswith("layers.1.layer_norm_2")}
    with pytest.raises(InputError, match=r"lacks layers.1.layer_norm_2.bias, layers.1.layer_norm_2.weight;"):
        convert("bert-like", lacking, config)
    with pytest.raises(InputError, match=r"embeddings.token_embeddings.weight: .*\(50, 24\).*\(51, 24\)"):
        convert("bert-like", weights, {**config, "vocab_size": 51})
    with pytest.raises(InputError, match="needs the field 'hidden_size'"):
        convert("bert-like", weights, {"vocab_size": 50})
    with pytest.raises(InputError, match="has no field hidden"):
        convert("deeplotx", None, {"feature_dim": 4, "hidden": 3})
    with pytest.raises(InputError, match="no source 'gpt'"):
        convert("gpt", None, {})


def test_stacks_of_vectors_take_vectors():
    model = convert("torch-encoder", None, CASES["torch-encoder"][0])
    with pytest.raises(ValueError, match="vocab_size=0: this model takes vectors; give inputs_embeds"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match="vocab_size=0: a stack that takes vectors has no vocabulary"):
        RoFormerLiteForMaskedLM(model.config)


def test_older_names_are_read():
    config = CASES["deeplotx"][0]
    _, weights = source_weights("deeplotx", config)
    older = {
        name.replace("up_proj", "fc1")
        .replace("down_proj", "fc2")
        .replace("parametric_relu", "parametric_relu_1"): tensor
        for name, tensor in weights.items()
    }
    older["attn.attn_heads.0.rope.inv_freq"] = torch.zeros(8)
    assert older.keys() != weights.keys()
    for (name, ours), other in zip(
        convert("deeplotx", weights, config).state_dict().items(),
        convert("deeplotx", older, config).state_dict().values(),
        strict=True,
    ):
        assert torch.equal(ours, other), name
    bert = CASES["bert"][0]
    _, weights = source_weights("bert", bert)
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(convert("bert", weights, bert)(ids)[0], convert("bert", older, bert)(ids)[0])


def test_roformer_v2_is_refused():
    config = CASES["roformer"][0]
    _, weights = source_weights("roformer", config)
    without_biases = {name: tensor for name, tensor in weights.items() if not name.endswith("bias")}
    with pytest.raises(InputError, match="RoFormerV2"):
        convert("roformer", without_biases, config)
    with pytest.raises(InputError, match="RoFormerV2"):
        convert("roformer", None, {**config, "use_bias": False})


def test_a_bidirectional_causal_model_is_refused():
    with pytest.raises(InputError, match="is_decoder=False"):
        convert("bert", None, {**HF, "architectures": ["BertLMHeadModel"]})


ROFORMER_LIKE = {**EXPRESSIBLE, "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
ROFORMER_LIKE |= {"intermediate_size": 30, "max_position_embeddings": 40, "initializer_range": 0.1}
LM = {"lm_head_transform": True, "lm_head_bias": True}
OURS = [
    (RoFormerLiteModel, {"type_vocab_size": 2, "embedding_size": 16}),
    (RoFormerLiteForMaskedLM, {**LM, "rotary_value": True, "embedding_size": 16}),
    (RoFormerLiteForMaskedLM, {**LM, "tie_word_embeddings": False}),
    (RoFormerLiteForCausalLM, {**LM, "is_decoder": True, "type_vocab_size": 3}),
    (RoFormerLiteForSequenceClassification, {"classifier_pooling": "cls", "classifier_activation": "gelu"}),
    (RoFormerLiteForTokenClassification, {"num_labels": 4}),
    (RoFormerLiteForQuestionAnswering, {}),
    (RoFormerLiteForMultipleChoice, {"classifier_pooling": "cls"}),
]


@pytest.mark.parametrize(("model_class", "fields"), OURS, ids=[f"{c.__name__}-{i}" for i, (c, _) in enumerate(OURS)])
def test_to_roformer_and_back(model_class, fields, tmp_path):
    """Stock transformers gives the same numbers, and what comes back is the same to the bit."""
    torch.manual_seed(0)
    model = model_class(RoFormerLiteConfig(**{**ROFORMER_LIKE, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "ours")
    export_checkpoint("roformer", tmp_path / "ours", tmp_path / "theirs")
    architecture = json.loads((tmp_path / "theirs" / "config.json").read_text())["architectures"][0]
    stock, loading = getattr(transformers, architecture).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    ids = torch.randint(1, 50, (2, 3, 30) if model_class is RoFormerLiteForMultipleChoice else (3, 30))
    mask = torch.ones_like(ids)
    mask[0, ..., 20:] = 0
    theirs, ours = stock.eval()(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
    if ours.shape[:2] == ids.shape:
        theirs, ours = theirs[mask.bool()], ours[mask.bool()]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    back = convert_checkpoint("roformer", tmp_path / "theirs", tmp_path / "back")
    weights = back.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights.pop(name)), name
    assert [name for name in weights if "token_type" not in name] == []  # a segment of zeros is all that may be new
    torch.testing.assert_close(back(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0])


def test_what_roformer_cannot_say():
    model = RoFormerLiteForMaskedLM(RoFormerLiteConfig(**{**ROFORMER_LIKE, "norm_placement": "pre", **LM}))
    with pytest.raises(InputError, match="norm_placement='pre' .must be 'post'"):
        export("roformer", model)
    with pytest.raises(InputError, match="no way back to deeplotx"):
        export("deeplotx", model)


def test_no_table_ends_the_positions():
    config = {**HF, "architectures": ["RoFormerModel"]}
    stock, weights = source_weights("roformer", config)
    model, ids = convert("roformer", weights, config), torch.randint(1, 50, (1, 100))
    with pytest.raises(IndexError):
        stock(ids)
    states = model(ids).last_hidden_state
    assert states.shape == (1, 100, 24) and states.isfinite().all()
    longer = transformers.RoFormerModel(RoFormerConfig.from_dict({**config, "max_position_embeddings": 100})).eval()
    table = longer.encoder.embed_positions.create_weight()
    longer.load_state_dict({**weights, "encoder.embed_positions.weight": table})
    torch.testing.assert_close(states, longer(ids)[0], rtol=0, atol=1e-5)


def test_scratch_seq2seq_generates():
    (config,) = CASES["scratch-seq2seq"]
    reference, weights = source_weights("scratch-seq2seq", config)
    model, src = convert("scratch-seq2seq", weights, config), torch.tensor([[5, 8, 3, 9], [7, 4, 0, 0]])
    mask = (src != 0).long()
    greedy = model.generate(src, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    tokens = greedy[:, :1]
    for _ in range(8):  # the plain system, step by step
        scores = reference(src, tokens)[:, -1]
        if tokens.shape[1] <= 8:
            scores[:, model.generation_config.eos_token_id] = -math.inf
        tokens = torch.cat((tokens, scores.argmax(-1, keepdim=True)), 1)
    assert torch.equal(greedy, tokens)
    beams = {"num_beams": 3, "max_new_tokens": 8, "attention_mask": mask}
    assert torch.equal(model.generate(src, **beams), model.generate(src, use_cache=False, **beams))


def test_where_the_published_code_fails():
    """Rows without a key, half precision, targets that begin with padding."""
    (config,) = CASES["scratch-seq2seq"]
    reference, weights = source_weights("scratch-seq2seq", config)
    model = convert("scratch-seq2seq", weights, config)
    src, tgt = torch.tensor([[0, 0, 0], [5, 6, 7]]), torch.tensor([[0, 4, 5], [4, 5, 6]])
    assert reference(src, tgt)[0].isnan().all()
    logits = model(src, (src != 0).long(), tgt, (tgt != 0).long()).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[1:], reference(src[1:], tgt[1:]), rtol=0, atol=1e-5)
    config = CASES["deeplotx"][0]
    reference, weights = source_weights("deeplotx", config)
    model, states = convert("deeplotx", weights, config), torch.randn(2, 5, 16)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    full = model(inputs_embeds=states, attention_mask=mask).last_hidden_state
    assert full.isfinite().all()
    half = model.half()(inputs_embeds=states.half(), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(half[0, :3].float(), full[0, :3], rtol=0.02, atol=0.02)


def test_parallel_heads_are_at_home(tmp_path):
    """Stacked, with a vocabulary and heads, trained, saved and loaded like any other stack."""
    config = RoFormerLiteConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        layer_style="parallel_heads",
        qkv_mlp_layers=2,
    )
    torch.manual_seed(0)
    model = RoFormerLiteForMaskedLM(config)
    ids = torch.randint(5, 40, (4, 9))
    mask = torch.ones_like(ids)
    mask[2, 4:] = 0
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    logits = model(ids, attention_mask=mask).logits
    assert torch.equal(loaded(ids, attention_mask=mask).logits, logits)
    torch.testing.assert_close(model(ids[2:3, :4]).logits[0], logits[2, :4], rtol=0, atol=1e-5)
    model.set_attn_implementation("eager")
    dense = model(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(dense.logits[mask.bool()], logits[mask.bool()], rtol=0, atol=1e-5)
    assert len(dense.hidden_states) == 3 and len(dense.attentions) == 2
    causal = RoFormerLiteForCausalLM(config).eval()
    kwargs = {"max_new_tokens": 6, "do_sample": False, "min_new_tokens": 6}
    assert torch.equal(causal.generate(ids, **kwargs), causal.generate(ids, use_cache=False, **kwargs))


def write_checkpoint(folder: Path, config: dict, weights: dict, form: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    if form == "safetensors":
        save_file(weights, folder / "model.safetensors")
    elif form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, part in shards.items():
            save_file({name: weights[name] for name in part}, folder / file)
        index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("form", ["safetensors", "bin", "shards"])
def test_directories(form, tmp_path):
    config = CASES["roformer"][1]
    _, weights = source_weights("roformer", config)
    del weights["cls.predictions.decoder.weight"], weights["cls.predictions.decoder.bias"]  # tied
    source = write_checkpoint(tmp_path / "source", config, weights, form)
    model = convert_checkpoint("roformer", source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
    code = (
        "import sys, torch, hf_roformer_lite; from transformers import AutoModelForMaskedLM as A;"
        "print(A.from_pretrained(sys.argv[1])(torch.arange(1, 9)[None]).logits.double().sum().item())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, check=True
    ).stdout
    expected = model(torch.arange(1, 9)[None]).logits.double().sum().item()
    assert float(printed.split()[-1]) == pytest.approx(expected, rel=1e-6)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


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
from hf_roformer_lite.conversion import convert_checkpoint

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before, peak = resident(), 0

def watch():
    global peak
    while True:
        peak = max(peak, resident())
        time.sleep(0.001)

threading.Thread(target=watch, daemon=True).start()
convert_checkpoint("roformer", sys.argv[1], sys.argv[2])
print(peak - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not say how much memory is taken")
def test_weights_are_streamed(tmp_path):
    config = {"architectures": ["RoFormerModel"], "vocab_size": 30000, "num_hidden_layers": 4}
    _, weights = source_weights("roformer", config)
    source = write_checkpoint(tmp_path / "source", config, weights, "shards")
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    arguments = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "out")]
    peak = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split()[-1])
    assert size > 150e6 and 0.5 * size < peak <= 2.2 * size


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_nothing_is_left_behind_and_nothing_runs(tmp_path):
    config = CASES["bert"][0]
    _, weights = source_weights("bert", config)
    source = write_checkpoint(tmp_path / "source", config, {**weights, "strange": torch.zeros(1)}, "safetensors")
    with pytest.raises(InputError, match="unknown strange"):
        convert_checkpoint("bert", source, tmp_path / "out")
    (source / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights"):
        convert_checkpoint("bert", source, tmp_path / "out")
    torch.save({"weight": Evil()}, source / "pytorch_model.bin")
    with pytest.raises(InputError, match="weights_only"):
        convert_checkpoint("bert", source, tmp_path / "out")
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="outside its directory"):
        convert_checkpoint("bert", source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
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
    assert main(["convert", str(source), str(tmp_path / "other")]) == 2
    assert "exactly one of --from and --to" in capsys.readouterr().err
