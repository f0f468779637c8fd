"""Tests that padded, single and packed rows give the same numbers with every backend."""

from itertools import product

import pytest
import torch
from conftest import (
    STACKS,
    STYLES,
    assert_close,
    assert_equal,
    build,
    packed_forms,
    random_ids,
    seq2seq_config,
    stack_config,
)
from torch.nn.functional import scaled_dot_product_attention
from toy_training import make_batch, make_model
from transformers import AttentionInterface

import hf_roformer_lite as rl
from hf_roformer_lite.model.pooling import pool

BACKENDS = ["padding_free", "sdpa", "eager"]
either_direction = pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])


def rows_alone(ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """The real tokens of each row `(1, length)`."""
    return [row[kept][None] for row, kept in zip(ids, mask.bool(), strict=True)]


@either_direction
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_every_form_gives_the_numbers_of_rows_alone(name, is_decoder, ragged_input):
    """Padded and packed rows agree in every backend, with and without hidden states and caches."""
    ids = ragged_input["input_ids"]
    mask = ragged_input["attention_mask"]
    real = mask.bool()
    flat, forms = packed_forms(ids, mask)
    expected = None
    for backend in [*BACKENDS, "flex_attention"]:
        if backend == "flex_attention" and name not in ("default", "sliding"):
            continue
        model = build(rl.RoFormerLiteModel, stack_config(name, backend, is_decoder=is_decoder))
        has_windows = "sliding_attention" in model.config.layer_types
        # Without a compiler, torch runs its own reference of the flexible kernel.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            alone = torch.zeros(6, 17, 32)
            alone[real] = torch.cat(
                [model(row, use_cache=False)[0][0] for row in rows_alone(ids, mask) if row.numel()]
            )
            if expected is None:
                expected_alone = alone
                expected = alone.clone()
                if has_windows:
                    # Windows count the places of padding between tokens, as in every model.
                    expected[3] = model(ids, mask, use_cache=False).last_hidden_state[3]
            assert_close(alone, expected_alone)
            for hidden_states, use_cache in product((False, True), repeat=2):
                more = {"output_hidden_states": hidden_states, "use_cache": use_cache}
                padded = model(ids, mask, **more).last_hidden_state
                assert_close(padded, expected)
                for form in forms:
                    packed = model(flat, **form, **more)
                    assert_close(packed.last_hidden_state[0], alone[real])
                    # There is no cache, because nothing can be appended to packed documents.
                    assert packed.past_key_values is None


@pytest.mark.parametrize("more", [{}, {"output_hidden_states": True}])
def test_packed_rows_with_a_mask(more):
    """Padding may stand between two documents, with any position, or within one document."""
    model = build(rl.RoFormerLiteModel, stack_config())
    ids = random_ids(1, 9)
    for documents in ([[0, 1, 2, 3], [6, 7, 8]], [[0, 1, 4, 5, 6, 7, 8]]):
        mask = torch.zeros_like(ids)
        positions = torch.full_like(ids, 9)
        for places in documents:
            mask[:, places] = 1
            positions[:, places] = torch.arange(len(places))
        states = model(ids, mask, position_ids=positions, **more).last_hidden_state
        alone = [model(ids[:, places]).last_hidden_state for places in documents]
        assert_close(states[:, sum(documents, [])], torch.cat(alone, 1))


def test_gaps_between_positions_begin_no_document():
    model = build(rl.RoFormerLiteModel, stack_config())
    ids = torch.arange(5, 13)[None]
    gaps = torch.arange(8)[None] * 3
    with_padding = model(ids, (ids < 11).long(), position_ids=gaps).last_hidden_state[:, :6]
    alone = model(ids[:, :6], position_ids=gaps[:, :6]).last_hidden_state
    assert_close(alone, with_padding)


def varlen_attention(module, query, key, value, attention_mask, scaling, **kwargs):
    """Compute document by document what a flash kernel computes from `cu_seq_lens`."""
    assert attention_mask is None and query.shape[0] == 1
    window = kwargs.get("sliding_window")
    outputs = []
    borders = kwargs["cu_seq_lens_q"]
    assert_equal(kwargs["cu_seq_lens_k"], borders)
    lengths = borders.diff().tolist()
    assert kwargs["max_length_q"] == max(lengths)
    parts = [states.split(lengths, dim=2) for states in (query, key, value)]
    for length, *document in zip(lengths, *parts, strict=True):
        distance = torch.arange(length)[:, None] - torch.arange(length)
        seen = distance.abs() < (window or length)
        if module.is_causal:
            seen &= distance >= 0
        options = {"attn_mask": seen, "scale": scaling, "enable_gqa": True}
        outputs.append(scaled_dot_product_attention(*document, **options))
    return torch.cat(outputs, dim=2).transpose(1, 2), None


@pytest.mark.parametrize("name", ["default", "grouped-gated-rms", "sliding"])
@either_direction
def test_flash_attention_gets_the_documents(name, is_decoder, ragged_input):
    """A flash kernel gets the borders of packed documents.

    Flash kernels need a GPU, so a function with the same interface stands in for them.
    """
    AttentionInterface.register("flash_stand_in", varlen_attention)
    model = build(rl.RoFormerLiteModel, stack_config(name, is_decoder=is_decoder))
    flat, (positions, packing) = packed_forms(*ragged_input.values())
    longest = int(packing["cu_seq_lens_q"].diff().max())
    packing |= {"max_length_q": longest, "max_length_k": longest}
    expected = model(flat, **packing, use_cache=False)[0]
    model.config._attn_implementation = "flash_stand_in"
    assert_close(model(flat, **packing, use_cache=False)[0], expected)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(flat, **positions)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STACKS)
def test_padded_pair_equals_rows_alone(name, backend, ragged_input):
    model = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config(name, backend))
    labels = random_ids(6, 11)
    for row, length in enumerate((11, 3, 8, 1, 5, 6)):
        labels[row, length:] = -100
    is_target = labels != -100
    with torch.no_grad():
        logits = model(**ragged_input, labels=labels).logits
        sources = rows_alone(*ragged_input.values())
        targets = rows_alone(labels, is_target)
        for row in range(5):
            alone = model(sources[row], labels=targets[row]).logits
            assert_close(logits[row][is_target[row]], alone[0])
        # The targets begin with the start token, [CLS].
        shifted = torch.cat((torch.full((6, 1), 2), labels[:, :-1]), 1).clamp(min=0)
        for target in (
            {"decoder_input_ids": shifted},
            {"labels": labels, "output_hidden_states": True},
            {"labels": labels, "decoder_attention_mask": is_target.long()},
        ):
            again = model(**ragged_input, **target, use_cache=False).logits
            assert_close(again[is_target], logits[is_target])


def test_a_source_without_tokens_gives_nothing_in_every_form():
    memory = torch.randn(2, 4, 32)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    ids = random_ids(2, 5)
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": mask}
    outputs = []
    for backend in BACKENDS:
        config = stack_config(backend=backend, is_decoder=True, add_cross_attention=True)
        model = build(rl.RoFormerLiteModel, config)
        outputs.append(model(ids, **source, use_cache=False)[0])
        assert_close(outputs[-1], outputs[0])


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_rows_alone_are_pooled_as_in_a_batch(pooling, ragged_input):
    config = stack_config(classifier_pooling=pooling, num_labels=5)
    model = build(rl.RoFormerLiteForSequenceClassification, config)
    ids = ragged_input["input_ids"][:5]
    mask = ragged_input["attention_mask"][:5]
    alone = [model(row).logits for row in rows_alone(ids, mask)]
    assert_close(model(ids, mask).logits, torch.cat(alone))


def test_masks_of_four_dimensions_are_taken_as_they_are():
    encoder = build(rl.RoFormerLiteModel, stack_config(is_decoder=False))
    causal = build(rl.RoFormerLiteModel, stack_config(is_decoder=True))
    ids = random_ids(2, 9)
    triangle = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    assert_close(encoder(ids, triangle)[0], causal(ids, use_cache=False)[0])
    pooled = build(
        rl.RoFormerLiteForSequenceClassification,
        stack_config(classifier_pooling="cls", num_labels=3),
    )
    expected = pooled(ids).logits
    everything = torch.ones(2, 1, 9, 9, dtype=torch.bool)
    # Such a mask does not say where padding is, so that a row is one document.
    for mask in (everything, {"full_attention": everything}):
        logits = pooled(ids, attention_mask=mask, position_ids=torch.arange(9)[None]).logits
        assert_close(logits, expected)


def test_segments_for_all_rows_and_rows_of_one_token():
    model = build(rl.RoFormerLiteModel, stack_config(type_vocab_size=2))
    ids = random_ids(2, 6)
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    for more in ({}, {"output_hidden_states": True}):
        states = model(ids, token_type_ids=segments, **more).last_hidden_state
        assert_close(states, model(ids, token_type_ids=segments.expand(2, 6))[0])
        one = model(ids[:, :1], attention_mask=torch.tensor([[1], [0]]), **more).last_hidden_state
        assert not one[1].any()


def test_token_dropout_of_fewer_tokens_than_rows():
    model = build(rl.RoFormerLiteModel, stack_config(token_dropout_mask_id=4))
    ids = torch.full((6, 3), 7)
    mask = torch.zeros(6, 3, dtype=torch.long)
    mask[5, 1] = 1
    assert_close(model(ids, mask)[0][5, 1], model(ids[:1, :1])[0][0, 0])
    # A mask token counts only in its own row.
    ids[0, 1] = 4
    four = torch.ones(6, 1, 3, 3, dtype=torch.bool)
    assert_close(model(ids, four)[0], model(ids)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_padding_alone_and_half_precision_stay_finite(kind, dtype, backend):
    """Losses and gradients are finite for rows and batches of padding, and for empty sources."""
    batch = make_batch(kind)
    batch["attention_mask"][:2] = 0
    nothing = {**batch, "attention_mask": torch.zeros_like(batch["attention_mask"])}
    for inputs, mode in product((batch, nothing), (True, False)):
        model = make_model(kind).to(dtype).train(mode)
        model.set_attn_implementation(backend)
        loss = model(**inputs).loss
        loss.backward()
        # The labels of padding are ignored.
        is_unlabelled = inputs is nothing and kind == "mlm"
        assert loss.isfinite() and (loss == 0) == is_unlabelled
        for parameter in model.parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all()


def test_means_in_half_precision():
    # Half precision can't represent the sum of these numbers.
    states = torch.full((1, 2000, 4), 60.0, dtype=torch.float16)
    assert torch.equal(pool(states, "mean", torch.ones(1, 2000)), states[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_attention_probabilities_are_those_of_eager_attention(name, ragged_input):
    """Also where the attention of a model is a subclass in another file."""
    found = []
    for backend in ("padding_free", "eager"):
        model = build(rl.RoFormerLiteModel, stack_config(name, backend))
        found.append(model(**ragged_input, output_attentions=True).attentions)
    assert_close(*found)
