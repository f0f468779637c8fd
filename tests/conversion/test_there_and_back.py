"""Weights go from transformers to this package and back, and RoFormerLite models open in classes
of transformers."""

import pytest
import torch
import transformers
from conftest import assert_close, assert_equal, data_beside, noisy
from conversion_cases import CASES, FAMILIES, HF, source_weights

import hf_roformer_lite as rl
from hf_roformer_lite.conversion import (
    CONVERTERS,
    ConversionError,
    convert,
    convert_checkpoint,
    export,
    export_checkpoint,
    load_checkpoint,
    open_checkpoint,
)

# Two of their classes become the same class of ours in these cases. Ours goes back to the other
# one, which is not listed here.
TWO_NAMES = (
    "BertForPreTraining",
    "ErnieForPreTraining",
    "AlbertForPreTraining",
    "ForNextSentencePrediction",
)
IDS = torch.tensor([[7, 8, 9, 10, 11, 12, 13], [20, 21, 22, 23, 0, 0, 0]])
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])


def cases():
    for name in FAMILIES:
        for number, config in enumerate(CASES[name]):
            if not config["architectures"][0].endswith(TWO_NAMES) and not config.get("use_task_id"):
                yield pytest.param(name, config, id=f"{config['architectures'][0]}-{number}")


# Positions begin after the row of padding in these families, and after two rows in the others.
POSITIONS_AFTER_PADDING = "roberta xlm-roberta camembert esm".split()
POSITIONS_AFTER_TWO_ROWS = ("bart", "mbart")


def number_of_unread_rows(name, key, config):
    """Count the rows at the beginning of a table of positions that no token reads, or of the head
    of ESM that predicts contacts."""
    if "contact_head" in key:
        return 1
    if not key.endswith(("position_embeddings.weight", "embed_positions.weight")):
        return 0
    if name in POSITIONS_AFTER_PADDING:
        return config.pad_token_id + 1
    return 2 if name in POSITIONS_AFTER_TWO_ROWS else 0


@pytest.mark.parametrize(("name", "config"), cases())
def test_bit_for_bit(name, config):
    """Weights go from theirs to ours, back to theirs, and to ours again. All weights that their
    class reads come back, and so do all of ours."""
    reference, weights = source_weights(name, config)
    # RoFormer computes its table of sinusoids again, so the table must not get noise.
    computed = {
        key: tensor.clone()
        for key, tensor in weights.items()
        if name == "roformer" and key.endswith("embed_positions.weight")
    }
    weights = noisy(reference).state_dict() | computed
    model = convert(name, weights, config)
    state_dict, exported = export(name, model)
    assert exported["architectures"] == config["architectures"]
    copies = {}
    if not reference.config.tie_word_embeddings:
        copies["model.shared.weight"] = "model.encoder.embed_tokens.weight"
    for key in state_dict:
        # If the weights are untied, their class reads only the bias of the matrix.
        if key.endswith("decoder.bias"):
            copies[key.replace("decoder.bias", "bias")] = key
    for key, tensor in state_dict.items():
        theirs = weights[copies.get(key, key)]
        rows = number_of_unread_rows(name, key, reference.config)
        assert torch.equal(tensor[rows:], theirs[rows:]), key
        assert not tensor[:rows].any(), key
    again = convert(name, state_dict, exported)
    assert_equal(again.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("name", "poolings"),
    [
        ("eurobert", ("bos", "mean", "late")),
        ("modernbert", ("cls", "mean")),
        ("ultrabert", ("cls", "mean")),
    ],
)
def test_pooling_comes_back(name, poolings):
    # Versions of transformers before 5.21 do not have UltraBERT.
    if name not in CONVERTERS:
        pytest.skip(f"this transformers has no {name}")
    classifiers = [case for case in CASES[name] if "ForSequence" in case["architectures"][0]]
    for pooling in poolings:
        config = {**classifiers[0], "classifier_pooling": pooling}
        _, exported = export(name, convert(name, None, config))
        assert exported["classifier_pooling"] == pooling


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("distilbert", "ForSequenceClassification"),
        ("distilbert", "ForQuestionAnswering"),
        ("electra", "ForMultipleChoice"),
        ("roformer", "ForMultipleChoice"),
    ],
)
def test_the_dropout_of_a_head_comes_back(name, head):
    case = next(case for case in CASES[name] if case["architectures"][0].endswith(head))
    fields = ("seq_classif_dropout", "qa_dropout", "summary_last_dropout")
    model = convert(name, None, {**case, **dict.fromkeys(fields, 0.3)})
    _, exported = export(name, model)
    assert CONVERTERS[name].our_config(exported).classifier_dropout == 0.3


def opened_by_theirs(converter, folder):
    """Open the files in `folder` in the family's own class, and check that no tensor is new."""
    state_dict, config = open_checkpoint(folder)
    if not converter.in_transformers:
        stock = converter.build_reference(config)
        converter.load_reference(stock, state_dict, config)
        return stock
    stock_class = getattr(transformers, config["architectures"][0])
    stock, loading = stock_class.from_pretrained(folder, output_loading_info=True)
    lacking = {key for key in loading["missing_keys"] if "pooler" not in key}
    assert not lacking and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    return stock


@pytest.mark.parametrize("name", FAMILIES)
def test_files(name, tmp_path):
    """Our conversion reads the files of their `save_pretrained`, in which names may be older, and
    their `from_pretrained` reads ours."""
    config = next(
        one
        for one in CASES[name]
        if "LM" in one["architectures"][0] or "Model" in one["architectures"][0]
    )
    reference, _ = source_weights(name, config)
    noisy(reference).save_pretrained(tmp_path / "theirs")
    model = convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    direct = convert(name, dict(reference.state_dict()), config)
    assert_equal(model.state_dict(), direct.state_dict())
    export_checkpoint(name, tmp_path / "ours", tmp_path / "back")
    opened_by_theirs(CONVERTERS[name], tmp_path / "back")


SIZES = {**HF, "hidden_dropout": 0.0}
SCALES = rl.RoFormerLiteConfig().scale_embeddings
GOES_TO = data_beside(__file__)


@pytest.mark.parametrize(
    "case", GOES_TO, ids=[f"{case['family']}-{number}" for number, case in enumerate(GOES_TO)]
)
def test_a_model_of_this_package_opens_in_theirs(case, tmp_path):
    """`--to auto` finds the family. Its own class opens the files and gives the same numbers, and
    the weights that come back are equal bit for bit."""
    family = case["family"]
    fields = case["fields"]
    model_class = getattr(rl, case["class"])
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    if "decoder" in fields:
        config = rl.RoFormerLiteSeq2SeqConfig(**fields)
        inputs["decoder_input_ids"] = IDS
    else:
        config = rl.RoFormerLiteConfig(**{**SIZES, **fields})
    torch.manual_seed(0)
    noisy(model_class(config)).save_pretrained(tmp_path / "ours")
    model = model_class.from_pretrained(tmp_path / "ours").eval()
    # A model that fits RoFormer fits other families too, so this name must be given.
    name = family if family == "roformer" else "auto"
    assert export_checkpoint(name, tmp_path / "ours", tmp_path / "theirs") == family
    stock = opened_by_theirs(CONVERTERS[family], tmp_path / "theirs")
    with torch.no_grad():
        theirs = stock.eval()(**inputs)[0]
        ours = model(**inputs)[0]
    real = MASK.bool() if ours.shape[:2] == MASK.shape else slice(None)
    assert_close(ours[real], theirs[real])
    back = load_checkpoint(tmp_path / "theirs")[0].state_dict()
    for key, tensor in model.state_dict().items():
        is_scaled = fields.get("scale_embeddings", SCALES) and "word_embeddings" in key
        assert is_scaled or torch.equal(tensor, back[key]), key


def test_what_fits_no_family():
    config = rl.RoFormerLiteConfig(**SIZES, rotary_value=True, norm_type="rmsnorm")
    model = rl.RoFormerLiteForMaskedLM(config)
    message = "no family.*nearest is .*rotary_value=True .must be False"
    with pytest.raises(ConversionError, match=message):
        export("auto", model)
    with pytest.raises(ConversionError, match="llama has no equivalent of RoFormerLiteForMaskedLM"):
        export("llama", model)
    walkthrough = rl.RoFormerLiteConfig(**SIZES, layer_style="walkthrough", norm_placement="post")
    with pytest.raises(ConversionError, match="layer_style='walkthrough' .must be 'standard'"):
        export("auto", rl.RoFormerLiteModel(walkthrough))


def test_a_part_of_a_head_is_rotated_by_no_llama():
    """Llama ignores the share that is rotated, so neither direction may keep it."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    case = next(case for case in GOES_TO if case["family"] == "llama")
    config = rl.RoFormerLiteConfig(**{**SIZES, **case["fields"], "rope_parameters": rope})
    with pytest.raises(ConversionError, match="partial_rotary_factor"):
        export("llama", rl.RoFormerLiteForCausalLM(config))
    theirs = transformers.LlamaConfig(rope_parameters=rope, architectures=["LlamaModel"])
    with pytest.raises(ConversionError, match="partial_rotary_factor"):
        CONVERTERS["llama"].our_config(theirs.to_dict())


@pytest.mark.parametrize("scaled", ["encoder", "decoder"])
def test_one_table_has_one_scale(scaled):
    case = next(case for case in GOES_TO if case["family"] == "bart")
    sides = {
        side: {**case["fields"][side], "scale_embeddings": side == scaled}
        for side in ("encoder", "decoder")
    }
    config = rl.RoFormerLiteSeq2SeqConfig(**{**case["fields"], **sides, "share_embeddings": True})
    with pytest.raises(ConversionError, match="scale"):
        export("bart", rl.RoFormerLiteSeq2SeqModel(config))


def test_esm_needs_the_id_of_padding():
    model = rl.RoFormerLiteModel(rl.RoFormerLiteConfig(**{**SIZES, "pad_token_id": None}))
    with pytest.raises(ConversionError, match="pad_token_id"):
        export("esm", model)


def test_layers_that_shared_weights_before_a_training():
    reference, weights = source_weights("albert", CASES["albert"][2])
    model = convert("albert", weights, CASES["albert"][2])
    _, exported = export("albert", model)
    assert exported["num_hidden_groups"] == 1
    with torch.no_grad():
        for parameter in model.model.layers[1].parameters():
            parameter += 0.1
    state_dict, exported = export("albert", model)
    assert exported["num_hidden_groups"] == 2
    again = convert("albert", state_dict, exported)
    assert_equal(again(IDS, MASK).logits, model(IDS, MASK).logits)
