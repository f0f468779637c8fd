"""Models for CTranslate2 give the log-probabilities and tokens of the original, and refusals come
before anything is written.

CTranslate2 reads the files that were written, so every test goes through the disk.
"""

from copy import deepcopy

import ctranslate2
import numpy as np
import pytest
import torch
from conftest import CLOSE, VOCAB, build, data_beside, noisy, random_ids, stack_config

import hf_roformer_lite as rl
from hf_roformer_lite.conversion import ConversionError
from hf_roformer_lite.conversion.ctranslate2 import export_ctranslate2

FILE = data_beside(__file__)
KINDS: dict[str, dict] = FILE["kinds"]


@pytest.fixture(scope="module")
def tokenizer() -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(
        ["one two three four"] * 9, vocab_size=VOCAB, algorithm="wordpiece"
    )


def pair_config(kind: str, **fields) -> rl.RoFormerLiteSeq2SeqConfig:
    """Return a pair whose sides have different widths, but are of one kind."""
    sizes = {"max_position_embeddings": 32} | KINDS[kind]
    encoder = stack_config(hidden_size=24, num_hidden_layers=1, **{"head_dim": 8} | sizes)
    return rl.RoFormerLiteSeq2SeqConfig(encoder=encoder, decoder=stack_config(**sizes), **fields)


def texts(lengths: tuple[int, ...], seed: int) -> list[list[int]]:
    return [random_ids(length, seed=seed + length).tolist() for length in lengths]


def names(tokenizer, rows: list[list[int]]) -> list[list[str]]:
    """Return the rows as tokens, which CTranslate2 takes."""
    known = {index: token for token, index in tokenizer.get_vocab().items()}
    return [[known.get(index, f"<unused {index}>") for index in row] for row in rows]


def exported(model, tokenizer, folder, kind, **options):
    """The model as a class of CTranslate2 opens it from the disk."""
    assert export_ctranslate2(model, tokenizer, folder, **options) == kind
    return getattr(ctranslate2, kind)(str(folder), compute_type="float32", intra_threads=1)


def greedy(model, row: list[int], length: int) -> list[int]:
    """The ids that `generate` returns for a text, without the end token."""
    found = model.generate(torch.tensor([row]), do_sample=False, max_new_tokens=length)
    return [index for index in found[0].tolist() if index != 3]


def log_probabilities(model, targets: list[int], **ids: list[int]) -> np.ndarray:
    """The log-probability of each target at its position, computed in float64."""
    exact = deepcopy(model).double()
    with torch.no_grad():
        logits = exact(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0]
    return logits.log_softmax(-1)[range(len(targets)), targets].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_pairs(kind, tokenizer, tmp_path):
    # Most pairs are not tied, as random weights that are tied repeat one token.
    tied = kind == "rms-gated-grouped"
    config = pair_config(kind, tie_word_embeddings=tied)
    model = noisy(build(rl.RoFormerLiteForConditionalGeneration, config))
    translator = exported(model, tokenizer, tmp_path, "Translator")
    sources = texts((7, 19, 3), seed=1)
    targets = texts((5, 11, 8), seed=2)
    scores = translator.score_batch(names(tokenizer, sources), names(tokenizer, targets))
    found = translator.translate_batch(
        names(tokenizer, sources), beam_size=1, max_decoding_length=20
    )
    chosen = set()
    for source, target, score, best in zip(sources, targets, scores, found, strict=True):
        ids = {"input_ids": source, "decoder_input_ids": [2, *target]}
        expected = log_probabilities(model, [*target, 3], **ids)
        np.testing.assert_allclose(score.log_probs, expected, **CLOSE)
        (expected_names,) = names(tokenizer, [greedy(model, source, 20)[1:]])
        assert best.hypotheses[0] == expected_names
        chosen |= set(expected_names)
    assert tied or len(chosen) > 1


@pytest.mark.parametrize("kind", "rms-gated-grouped sinusoidal llama3 embedding-norm".split())
def test_causal_models(kind, tokenizer, tmp_path):
    config = stack_config(is_decoder=True, **{"max_position_embeddings": 64} | KINDS[kind])
    model = noisy(build(rl.RoFormerLiteForCausalLM, config))
    generator = exported(model, tokenizer, tmp_path, "Generator")
    rows = texts((9, 23, 2), seed=3)
    scores = generator.score_batch(names(tokenizer, rows))
    found = generator.generate_batch(
        names(tokenizer, rows), max_length=12, include_prompt_in_result=False
    )
    for row, score, best in zip(rows, scores, found, strict=True):
        expected = log_probabilities(model, row[1:], input_ids=row[:-1])
        np.testing.assert_allclose(score.log_probs, expected, **CLOSE)
        assert best.sequences_ids[0] == greedy(model, row, 12)[len(row) :]


@pytest.mark.parametrize("kind", "post rms-gated-grouped learned yarn".split())
def test_encoders(kind, tokenizer, tmp_path):
    """Encoders have BERT's pooler and segments."""
    config = stack_config(add_pooling_layer=True, type_vocab_size=2, **KINDS[kind])
    model = noisy(build(rl.RoFormerLiteModel, config))
    encoder = exported(model, tokenizer, tmp_path, "Encoder")
    rows = texts((9, 30, 1), seed=4)
    segments = [[index % 2 for index in row] for row in rows]
    found = encoder.forward_batch(rows, token_type_ids=segments)
    states = np.array(found.last_hidden_state)
    pooled = np.array(found.pooler_output)
    for number, (row, kinds) in enumerate(zip(rows, segments, strict=True)):
        with torch.no_grad():
            expected = model(torch.tensor([row]), token_type_ids=torch.tensor([kinds]))
        np.testing.assert_allclose(
            states[number, : len(row)], expected.last_hidden_state[0], rtol=0, atol=2e-5
        )
        np.testing.assert_allclose(pooled[number], expected.pooler_output[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("quantization", ["int8", "float16"])
def test_quantization(quantization, tokenizer, tmp_path):
    """Quantized files are smaller, and their states stay near those of the model."""
    model = build(rl.RoFormerLiteForMaskedLM, stack_config(hidden_size=64))
    sizes = []
    for kind in (None, quantization):
        # The weights of the file are compared in float32, because products of 8 bits saturate on
        # processors that can't add them up in 32 bits.
        encoder = exported(model, tokenizer, tmp_path, "Encoder", quantization=kind)
        sizes.append((tmp_path / "model.bin").stat().st_size)
    assert sizes[1] < 0.6 * sizes[0]
    (row,) = texts((12,), seed=5)
    found = np.array(encoder.forward_batch([row]).last_hidden_state)[0].ravel()
    with torch.no_grad():
        expected = model.model(torch.tensor([row])).last_hidden_state.numpy().ravel()
    assert found @ expected / np.linalg.norm(found) / np.linalg.norm(expected) > 0.999


@pytest.mark.parametrize("case", FILE["refused"], ids=lambda case: case["message"])
def test_refusals(case, tokenizer, tmp_path):
    model = build(rl.RoFormerLiteForMaskedLM, stack_config(**case["fields"]))
    with pytest.raises(ConversionError, match=case["message"]):
        export_ctranslate2(model, tokenizer, tmp_path)
    assert not any(tmp_path.iterdir())


def test_refusals_of_pairs_and_heads(tokenizer, tmp_path):
    pair = build(rl.RoFormerLiteForConditionalGeneration, pair_config("pre"))
    pair.get_decoder().config.norm_eps = 1e-3
    with pytest.raises(ConversionError, match="decoder.norm_eps=0.001.*encoder.norm_eps=1e-06"):
        export_ctranslate2(pair, tokenizer, tmp_path)
    classifier = build(rl.RoFormerLiteForSequenceClassification, stack_config())
    with pytest.raises(ConversionError, match="RoFormerLiteForSequenceClassification: "):
        export_ctranslate2(classifier, tokenizer, tmp_path)
