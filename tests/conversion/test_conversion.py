"""Conversion: equal outputs, every tensor accounted for, clear errors, export to HF RoFormer."""

import json
import math

import pytest
import torch
import transformers
from conversion_cases import CASES, HF, source_weights
from transformers import AutoModelForMaskedLM, RoFormerConfig

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
from hf_roformer_lite.conversion import (
    CONVERTERS,
    ConversionError,
    convert,
    convert_checkpoint,
    export,
    export_checkpoint,
    verify,
)
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE


def test_every_source_is_compared_with_its_original():
    assert CASES.keys() == CONVERTERS.keys()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}-{config.get('architectures', [number])[0]}-{number}")
        for name, configs in CASES.items()
        for number, config in enumerate(configs)
    ],
)
def test_equal_outputs(name, config):
    for difference in verify(name, None, config):
        assert difference.maximum <= CONVERTERS[name].tolerances[difference.dtype], difference


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
    with pytest.raises(ConversionError, match="has unknown pooler.weight"):
        convert("bert-like", {**weights, "pooler.weight": torch.zeros(1)}, config)
    lacking = {name: tensor for name, tensor in weights.items() if not name.startswith("layers.1.layer_norm_2")}
    with pytest.raises(ConversionError, match=r"lacks layers.1.layer_norm_2.bias, layers.1.layer_norm_2.weight;"):
        convert("bert-like", lacking, config)
    with pytest.raises(ConversionError, match=r"embeddings.token_embeddings.weight: .*\(50, 24\).*\(51, 24\)"):
        convert("bert-like", weights, {**config, "vocab_size": 51})
    with pytest.raises(ConversionError, match="needs the field 'hidden_size'"):
        convert("bert-like", weights, {"vocab_size": 50})
    with pytest.raises(ConversionError, match="has no field hidden"):
        convert("deeplotx", None, {"feature_dim": 4, "hidden": 3})
    with pytest.raises(ConversionError, match="no source 'gpt'"):
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


def test_roformers_that_are_others_are_refused():
    config = CASES["roformer"][0]
    _, weights = source_weights("roformer", config)
    without_biases = {name: tensor for name, tensor in weights.items() if not name.endswith("bias")}
    with pytest.raises(ConversionError, match="RoFormerV2"):
        convert("roformer", without_biases, config)
    with pytest.raises(ConversionError, match="RoFormerV2"):
        convert("roformer", None, {**config, "use_bias": False})
    with pytest.raises(ConversionError, match="norm_type='layer_norm', use_bias=True.*the source roformer"):
        convert("roformer_v2", None, {**config, "norm_type": "layer_norm", "use_bias": True})
    with pytest.raises(ConversionError, match="RoFormer-Sim .* sees the whole source"):
        convert("roformer", {**weights, "pooler.dense.weight": torch.zeros(24, 24)}, config)


def test_the_config_tells_the_versions_of_roformer_apart(tmp_path):
    for name in ("roformer", "roformer_v2"):
        reference, _ = source_weights(name, CASES[name][1])
        reference.save_pretrained(tmp_path / name)
        model = convert_checkpoint("auto", tmp_path / name, tmp_path / f"{name}-ours")
        assert model.config.norm_type == {"roformer": "layernorm", "roformer_v2": "rmsnorm"}[name]
    with torch.no_grad():
        model.model.layers[0].mlp_norm.weight[3] = 1.1
    with pytest.raises(ConversionError, match="must be 1 in every entry"):
        export("roformer_v2", model)


def test_a_bidirectional_causal_model_is_refused():
    with pytest.raises(ConversionError, match="is_decoder=False"):
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
    """Stock transformers gives the same numbers, and an exported model converted again is equal bit for bit."""
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
    assert [name for name in weights if "token_type" not in name] == []  # one of zeros is new
    torch.testing.assert_close(back(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0])


def test_what_has_no_equivalent_in_roformer():
    model = RoFormerLiteForMaskedLM(RoFormerLiteConfig(**{**ROFORMER_LIKE, "norm_placement": "pre", **LM}))
    with pytest.raises(ConversionError, match="norm_placement='pre' .must be 'post'"):
        export("roformer", model)
    with pytest.raises(ConversionError, match="cannot be exported to deeplotx"):
        export("deeplotx", model)


def test_positions_have_no_limit():
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
    for _ in range(8):  # the reference system, step by step
        scores = reference(src, tokens)[:, -1]
        if tokens.shape[1] <= 8:
            scores[:, model.generation_config.eos_token_id] = -math.inf
        tokens = torch.cat((tokens, scores.argmax(-1, keepdim=True)), 1)
    assert torch.equal(greedy, tokens)
    beams = {"num_beams": 3, "max_new_tokens": 8, "attention_mask": mask}
    assert torch.equal(model.generate(src, **beams), model.generate(src, use_cache=False, **beams))


def test_where_the_published_code_fails():
    """Rows of padding alone, half precision, targets that begin with padding."""
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


def test_parallel_heads_work_like_other_layers(tmp_path):
    """Several layers, a vocabulary and heads: trained, saved and loaded like the standard layer."""
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


def test_the_source_keeps_its_weights():
    """Changing a converted model, or an exported state dict, leaves what it was made of unchanged."""
    config = CASES["roformer"][1]
    stock, weights = source_weights("roformer", config)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    model = convert("roformer", stock.state_dict(), config)
    ours = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    exported, _ = export("roformer", model)
    with torch.no_grad():
        for tensor in exported.values():
            tensor += 1
    assert all(torch.equal(tensor, ours[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in stock.state_dict().items())


def test_verify_reads_what_convert_reads():
    """Older names, and configs without the fields that are read from the weights."""
    bert = CASES["bert"][0]
    _, weights = source_weights("bert", bert)
    older = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in weights.items()}
    without_pooler = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    encoder = CASES["torch-encoder"][1]
    _, normed = source_weights("torch-encoder", encoder)
    _, walk = source_weights("walkthrough", CASES["walkthrough"][0])
    for name, state_dict, config in (
        ("bert", older, bert),
        ("bert", without_pooler, bert),
        ("torch-encoder", normed, {**{k: v for k, v in encoder.items() if k != "norm"}, "batch_first": True}),
        ("walkthrough", walk, {}),
    ):
        for difference in verify(name, state_dict, config):
            assert difference.is_within, (name, difference)
    lacking = {name: tensor for name, tensor in weights.items() if "word_embeddings" not in name}
    with pytest.raises(
        ConversionError, match="lacks embeddings.word_embeddings.weight|needs embeddings.word_embeddings"
    ):
        verify("bert", lacking, bert)
    with pytest.raises(ConversionError, match="LayerNorm.weight under an older and a newer name"):
        convert("bert", {**weights, **older}, bert)
