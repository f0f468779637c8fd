"""Converted models compute what their sources compute: outputs, dropouts, long and packed texts,
generated text."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from conftest import assert_close, dropout_without_chance, noisy
from conversion_cases import CASES, FAMILIES, source_weights
from program import change_fields, read_json
from torch.nn import functional as F

from hf_roformer_lite.conversion import CONVERTERS, convert, convert_checkpoint, verify
from hf_roformer_lite.conversion.verification import (
    cast_exactly,
    comparable_outputs,
    computing_in,
    random_inputs,
)

ATTEND = F.scaled_dot_product_attention
SINGLE = [name for name in FAMILIES if "d_model" not in CASES[name][0]]
LEARNED = "bert ernie roberta xlm-roberta camembert electra distilbert albert".split()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name}-{config.get('architectures', [number])[0]}-{number}")
        for name, configs in CASES.items()
        for number, config in enumerate(configs)
    ],
)
def test_outputs(name, config):
    """Every head and option of every source, in float32 and float64."""
    for difference in verify(name, None, config):
        assert difference.maximum <= CONVERTERS[name].tolerances[difference.dtype], difference


@contextmanager
def factors_for_dropout(*models):
    """Replace every dropout by a factor, its probability of keeping a number.

    Training then gives the same numbers on both sides if and only if each dropout stands where it
    stood.
    """

    def scaled_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs
    ):
        return ATTEND(query, key, value, attn_mask, 0.0, is_causal, **kwargs) * (1 - dropout_p)

    for model in models:
        model.train()
    with (
        mock.patch.object(F, "scaled_dot_product_attention", scaled_attention),
        mock.patch.object(F, "dropout", dropout_without_chance),
    ):
        yield


def dropouts(name):
    """Return the source's fields that are probabilities of a dropout, with a different value for
    each of them."""
    if name not in FAMILIES:
        return {"dropout": 0.3}
    fields = [field for field in CONVERTERS[name].config_class().to_dict() if "dropout" in field]
    values = {
        field: 0.1 * number for number, field in enumerate(fields, 1) if field != "token_dropout"
    }
    # These families also have a dropout after the attention, where our models have none.
    if name.startswith("modernbert"):
        values["attention_dropout"] = 0.0
    return values


@pytest.mark.parametrize("name", ["torch-encoder", "torch-decoder", "torch-transformer", *FAMILIES])
def test_dropouts(name):
    """In training each dropout stands where it stood: one case for every class."""
    cases_by_class = {
        case.get("architectures", [number])[0]: case for number, case in enumerate(CASES[name])
    }
    for case in cases_by_class.values():
        config = {**case, **dropouts(name)}
        reference, weights = source_weights(name, config)
        model = convert(name, weights, config)
        converter = CONVERTERS[name]
        inputs = random_inputs(model, full_rows=converter.needs_full_rows(model.config))
        with torch.no_grad(), factors_for_dropout(reference, model):
            theirs = comparable_outputs(converter.run_reference(reference, inputs), inputs)
            ours = comparable_outputs(model(**inputs), inputs)
        assert_close(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("name", SINGLE)
def test_long_and_packed(name):
    """Texts are longer than every window and, unless positions are in a table, also longer than in
    training. Their model gets each in a row of its own, and ours gets all of them in one row."""
    length = 30 if name in LEARNED else 70
    config = {**CASES[name][0], "num_hidden_layers": 3}
    if "roformer" in name:
        # Their table of positions needs a row for each token, and ours has no table.
        config["max_position_embeddings"] = 80
    converter = CONVERTERS[name]
    reference, _ = source_weights(name, config)
    stock = cast_exactly(noisy(reference), torch.float64)
    model = convert(name, dict(stock.state_dict()), config)
    texts = [torch.randint(6, 50, (n,)) for n in (length, 1, length // 2, 7)]
    with computing_in(torch.float64):
        alone = [
            {"input_ids": text[None], "attention_mask": torch.ones(1, len(text)) > 0}
            for text in texts
        ]
        states = [converter.run_reference(stock, inputs).last_hidden_state[0] for inputs in alone]
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    packed = model(
        torch.cat(texts)[None], position_ids=positions, use_cache=False
    ).last_hidden_state[0]
    assert_close(packed, torch.cat(states), atol=1e-10)


@pytest.mark.parametrize("name", ["bart", "mbart", "marian"])
def test_pairs_generate_alike(name, tmp_path):
    """The settings of generation_config.json go along: forced and forbidden tokens, and beams."""
    config = {**CASES[name][1], "eos_token_id": 3}
    reference, _ = source_weights(name, config)
    noisy(reference).generation_config.update(
        num_beams=3, bad_words_ids=[[4]], forced_eos_token_id=3, max_length=12
    )
    reference.save_pretrained(tmp_path / "theirs")
    model = convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    assert model.generation_config.bad_words_ids == [[4]]
    assert model.config.decoder_start_token_id == 2
    pad = config.get("pad_token_id", 1)
    ids = torch.tensor([[7, 8, 9, 10], [11, 12, pad, pad]])
    inputs = {"input_ids": ids, "attention_mask": (ids != pad).long()}
    expected = reference.generate(**inputs)
    assert torch.equal(model.generate(**inputs), expected)
    # Older checkpoints have these settings in config.json.
    file = tmp_path / "theirs" / "generation_config.json"
    fields = read_json(file)
    file.unlink()
    change_fields(file.with_name("config.json"), **fields)
    older = convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "older")
    assert older.generation_config.num_beams == 3
    assert torch.equal(older.generate(**inputs), expected)


def test_marian_without_stored_positions():
    """Files without a table of positions give the same model, as the table is computed."""
    config = CASES["marian"][1]
    _, weights = source_weights("marian", config)
    computed = {name: value for name, value in weights.items() if "embed_positions" not in name}
    stored = convert("marian", weights, config).state_dict()
    made = convert("marian", computed, config).state_dict()
    assert_close(made, stored, atol=1e-7)
