"""One model, many ways to feed it: padded, unpadded, packed, ragged, dense, on every backend: the same numbers."""

import pytest
import torch
from conftest import STACKS, STYLES, VOCAB, build, seq2seq_config, stack_config
from torch.nn.attention.flex_attention import flex_attention
from transformers import AttentionInterface

from hf_roformer_lite import (
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.model import attention_functions

TOLERANCE = {"rtol": 0, "atol": 1e-5}


def packed(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The real tokens of a batch as one row, with restarting positions and with borders."""
    lengths = [n for n in mask.sum(1).tolist() if n]
    positions = torch.cat([torch.arange(n) for n in lengths])
    borders = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return ids[mask.bool()][None], positions[None], borders


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_padded_unpadded_packed_ragged_dense(name, backend, is_decoder, ragged_input):
    model = build(RoFormerLiteModel, stack_config(name, backend, is_decoder=is_decoder))
    ids, mask = ragged_input["input_ids"], ragged_input["attention_mask"]
    real = mask.bool()
    with torch.no_grad():
        ragged = model(ids, mask, use_cache=False).last_hidden_state
        dense = model(ids, mask, use_cache=False, output_hidden_states=True).last_hidden_state
        torch.testing.assert_close(dense, ragged, **TOLERANCE)
        assert ragged[~real].abs().max() == 0
        for row in range(len(ids)):
            if real[row].any():
                alone = model(ids[row][real[row]][None], use_cache=False).last_hidden_state[0]
                torch.testing.assert_close(ragged[row][real[row]], alone, **TOLERANCE)
        flat, positions, borders = packed(ids, mask)
        for kwargs in ({"position_ids": positions}, {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}):
            one_row = model(flat, use_cache=False, **kwargs).last_hidden_state[0]
            torch.testing.assert_close(one_row, ragged[real], **TOLERANCE)
            one_dense_row = model(flat, use_cache=False, output_hidden_states=True, **kwargs).last_hidden_state[0]
            torch.testing.assert_close(one_dense_row, ragged[real], **TOLERANCE)


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_eager_equals_sdpa(name, is_decoder, ragged_input):
    eager = build(RoFormerLiteModel, stack_config(name, "eager", is_decoder=is_decoder))
    sdpa = build(RoFormerLiteModel, stack_config(name, "sdpa", is_decoder=is_decoder))
    for wants_layers in (False, True):
        for use_cache in (False, True):
            kwargs = {**ragged_input, "output_hidden_states": wants_layers, "use_cache": use_cache}
            outputs = [m(**kwargs)[0] for m in (eager, sdpa)]
            torch.testing.assert_close(*outputs, **TOLERANCE)


def use_uncompiled_flex_attention(monkeypatch) -> None:
    """torch's own reference of the kernel."""
    monkeypatch.setattr(
        "transformers.integrations.flex_attention.compile_friendly_flex_attention",
        lambda query, key, value, training=False, **kwargs: flex_attention(query, key, value, **kwargs),
    )


@pytest.mark.parametrize("name", ["default", "sliding"])
@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
def test_flex_attention(name, is_decoder, ragged_input, monkeypatch):
    use_uncompiled_flex_attention(monkeypatch)
    sdpa = build(RoFormerLiteModel, stack_config(name, "sdpa", is_decoder=is_decoder))
    flex = build(RoFormerLiteModel, stack_config(name, "flex_attention", is_decoder=is_decoder))
    flat, positions, _ = packed(ragged_input["input_ids"], ragged_input["attention_mask"])
    with torch.no_grad():
        for inputs in (ragged_input, {"input_ids": flat, "position_ids": positions}):
            expected = sdpa(**inputs, use_cache=False)[0]
            for wants_layers in (False, True):
                output = flex(**inputs, use_cache=False, output_hidden_states=wants_layers)[0]
                torch.testing.assert_close(output, expected, **TOLERANCE)


@pytest.mark.parametrize("encoder, decoder", [("sdpa", "flex_attention"), ("flex_attention", "sdpa")])
def test_each_stack_on_a_backend_of_its_own(encoder, decoder, ragged_input, monkeypatch):
    use_uncompiled_flex_attention(monkeypatch)
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config("default", "sdpa"))
    inputs = {**ragged_input, "decoder_input_ids": ragged_input["input_ids"].flip(1)}
    inputs["decoder_attention_mask"] = ragged_input["attention_mask"].flip(1)
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits
        model.set_attn_implementation({"encoder": encoder, "decoder": decoder})
        backends = [part.config._attn_implementation for part in (model.model.encoder, model.model.decoder)]
        assert backends == [encoder, decoder]
        torch.testing.assert_close(model(**inputs, use_cache=False).logits, expected, **TOLERANCE)


@pytest.mark.slow
def test_flex_attention_compiled(ragged_input):
    sdpa = build(RoFormerLiteModel, stack_config("default", "sdpa"))
    flex = build(RoFormerLiteModel, stack_config("default", "flex_attention"))
    with torch.no_grad():
        torch.testing.assert_close(flex(**ragged_input)[0], sdpa(**ragged_input)[0], **TOLERANCE)


def varlen_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, is_causal=None, **kwargs):
    """What a flash kernel does with cu_seq_lens, document by document."""
    assert attention_mask is None and query.shape[0] == 1
    groups, window = query.shape[1] // key.shape[1], kwargs.get("sliding_window")
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    outputs = []
    borders = [kwargs[f"cu_seq_lens_{side}"].tolist() for side in "qk"]
    assert kwargs["max_length_q"] == max(torch.tensor(borders[0]).diff())
    is_causal = module.is_causal if is_causal is None else is_causal
    for q0, q1, k0, k1 in zip(borders[0][:-1], borders[0][1:], borders[1][:-1], borders[1][1:], strict=True):
        scores = query[:, :, q0:q1] @ key[:, :, k0:k1].mT * scaling
        distance = torch.arange(q1 - q0)[:, None] - torch.arange(k1 - k0)
        seen = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            seen &= distance.abs() < window
        outputs.append(scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num() @ value[:, :, k0:k1])
    return torch.cat(outputs, dim=2).transpose(1, 2), None


@pytest.mark.parametrize("name", ["default", "grouped-gated-rms", "sliding"])
def test_flash_attention_gets_the_documents(name, ragged_input):
    """No flash kernel runs here; a stand-in of the same interface shows what it gets."""
    AttentionInterface.register("flash_stand_in", varlen_attention)
    for is_decoder in (False, True):
        expected = build(RoFormerLiteModel, stack_config(name, is_decoder=is_decoder))(**ragged_input, use_cache=False)
        model = build(RoFormerLiteModel, stack_config(name, is_decoder=is_decoder))
        model.config._attn_implementation = "flash_stand_in"
        torch.testing.assert_close(model(**ragged_input, use_cache=False)[0], expected[0], **TOLERANCE)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["default", "sliding", "post-sinusoidal"])
def test_no_document_sees_its_neighbour(name, backend, generator):
    for is_decoder in (False, True):
        model = build(RoFormerLiteModel, stack_config(name, backend, is_decoder=is_decoder))
        ids = torch.randint(5, VOCAB, (1, 24), generator=generator)
        positions = torch.cat([torch.arange(9), torch.arange(15)])[None]
        changed = ids.clone()
        changed[0, 9:] = torch.randint(5, VOCAB, (15,), generator=generator)
        for wants_layers in (False, True):
            kwargs = {"position_ids": positions, "use_cache": False, "output_hidden_states": wants_layers}
            before, after = model(ids, **kwargs)[0][0, :9], model(changed, **kwargs)[0][0, :9]
            assert torch.equal(before, after)
            embeds = model.embeddings.word_embeddings(ids).detach().requires_grad_()
            model(inputs_embeds=embeds, **kwargs)[0][0, :9].square().sum().backward()
            assert embeds.grad[0, 9:].abs().max() == 0 and embeds.grad[0, :9].abs().min() > 0


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
def test_long_sliding_window_rows_are_cut_into_bands(is_decoder, generator):
    """Documents many windows long, against the mask of the whole document."""
    model = build(RoFormerLiteModel, stack_config("sliding", is_decoder=is_decoder, max_position_embeddings=512))
    ids = torch.randint(5, VOCAB, (3, 50), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 31:] = 0
    mask[2, :40] = 0
    for kwargs in ({}, {"attention_mask": mask}):
        banded = model(ids, use_cache=False, **kwargs)[0]
        whole = model(ids, use_cache=False, output_hidden_states=True, **kwargs)[0]
        torch.testing.assert_close(banded, whole, **TOLERANCE)
        gradients = []
        for output in (banded, whole):
            model.zero_grad()
            output.square().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_gradients_of_ragged_and_dense_agree(name, backend, ragged_input):
    model = build(RoFormerLiteModel, stack_config(name, backend, initializer_range=0.02)).double()
    gradients = []
    for wants_layers in (False, True):
        model.zero_grad()
        model(**ragged_input, output_hidden_states=wants_layers)[0].pow(3).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert gradients[0].isfinite().all()
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", STACKS)
def test_seq2seq_padded_equals_rows_alone(name, backend, ragged_input, generator):
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name, backend))
    labels = torch.randint(5, VOCAB, (6, 11), generator=generator)
    for row, length in enumerate((11, 3, 8, 1, 5, 6)):
        labels[row, length:] = -100
    with torch.no_grad():
        logits = model(**ragged_input, labels=labels).logits
        for row in range(5):
            real = ragged_input["attention_mask"][row].bool()
            kept = labels[row] != -100
            alone = model(ragged_input["input_ids"][row][real][None], labels=labels[row][kept][None]).logits[0]
            torch.testing.assert_close(logits[row][kept], alone, **TOLERANCE)
        decoder_mask = (labels != -100).long()
        for kwargs in ({}, {"output_hidden_states": True}, {"decoder_attention_mask": decoder_mask}):
            again = model(**ragged_input, labels=labels, use_cache=False, **kwargs).logits
            torch.testing.assert_close(again[labels != -100], logits[labels != -100], **TOLERANCE)


def test_packed_seq2seq_equals_padded(generator):
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    sources = [torch.randint(5, VOCAB, (n,), generator=generator) for n in (5, 9, 2)]
    targets = [torch.randint(5, VOCAB, (n,), generator=generator) for n in (4, 1, 7)]
    packed_inputs = {
        "input_ids": torch.cat(sources)[None],
        "position_ids": torch.cat([torch.arange(len(s)) for s in sources])[None],
        "decoder_input_ids": torch.cat(targets)[None],
        "decoder_position_ids": torch.cat([torch.arange(len(t)) for t in targets])[None],
    }
    one_row = model(**packed_inputs, use_cache=False).logits[0]
    alone = [
        model(s[None], decoder_input_ids=t[None], use_cache=False).logits[0]
        for s, t in zip(sources, targets, strict=True)
    ]
    torch.testing.assert_close(one_row, torch.cat(alone), **TOLERANCE)
    packed_inputs["decoder_position_ids"] = torch.arange(12)[None]
    with pytest.raises(ValueError, match="1 documents"):
        model(**packed_inputs, use_cache=False)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_alone_and_half_precision_stay_finite(dtype, backend, ragged_input):
    """A row of nothing but padding, a batch of nothing else, a source without tokens for a target that has some."""
    nothing = {**ragged_input, "attention_mask": torch.zeros_like(ragged_input["attention_mask"])}
    labels = ragged_input["input_ids"][:, :7].clone()
    for inputs in (ragged_input, nothing):
        for model_class, config, extra in (
            (RoFormerLiteForMaskedLM, stack_config("default", backend), {"labels": ragged_input["input_ids"]}),
            (RoFormerLiteForConditionalGeneration, seq2seq_config("default", backend), {"labels": labels}),
        ):
            for mode in (True, False):
                model = build(model_class, config).to(dtype).train(mode)
                loss = model(**inputs, **extra).loss
                loss.backward()
                assert loss.isfinite() and loss > 0
                assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_short_documents_in_half_precision_learn_in_float32(monkeypatch):
    """A gradient of sdpa in bfloat16 is the slower one there; what is attended is that of the same numbers."""
    model = build(RoFormerLiteModel, stack_config())
    attention, seen, plain = model.layers[0].self_attn, [], attention_functions.sdpa_attention_forward

    def attend(module, query, *args, **kwargs):
        seen.append((query.dtype, torch.is_autocast_enabled("cpu")))
        return plain(module, query, *args, **kwargs)

    monkeypatch.setattr(attention_functions, "sdpa_attention_forward", attend)
    for longest, has_grad, wanted in (
        (511, True, torch.float32),
        (512, True, torch.bfloat16),
        (9, False, torch.bfloat16),
    ):
        borders = torch.tensor([0, longest, longest + 4], dtype=torch.int32)
        kwargs = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_k": longest, "scaling": 0.35}
        given = torch.randn(3, 1, 4, longest + 4, 8, dtype=torch.bfloat16, requires_grad=has_grad)
        seen.clear()
        with torch.autocast("cpu", torch.bfloat16):
            output, _ = attention_functions.sdpa_attention_by_document(attention, *given, None, **kwargs)
        assert set(seen) == {(wanted, wanted == torch.bfloat16)} and output.dtype == torch.bfloat16
        exact = given.detach().double().requires_grad_()
        expected, _ = attention_functions.sdpa_attention_by_document(attention, *exact, None, **kwargs)
        assert (output - expected).norm() < 0.01 * expected.norm()
        if has_grad:
            output.float().square().sum().backward()
            expected.square().sum().backward()
            assert (given.grad - exact.grad).norm() < 0.02 * exact.grad.norm()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooled_heads_read_the_same_tokens_in_every_form(pooling, ragged_input):
    config = stack_config(classifier_pooling=pooling, num_labels=5)
    model = build(RoFormerLiteForSequenceClassification, config)
    ids, mask = ragged_input["input_ids"][:5], ragged_input["attention_mask"][:5]
    with torch.no_grad():
        logits = model(ids, mask).logits
        alone = torch.cat([model(ids[i][mask[i].bool()][None]).logits for i in range(5)])
        torch.testing.assert_close(logits, alone, **TOLERANCE)
        flat, positions, borders = packed(ids, mask)
        torch.testing.assert_close(model(flat, position_ids=positions).logits, alone, **TOLERANCE)
        torch.testing.assert_close(model(flat, cu_seq_lens_q=borders).logits, alone, **TOLERANCE)
        assert model(**ragged_input).logits[5].isfinite().all()


def test_masks_of_four_dimensions_are_taken_as_they_are(generator):
    model = build(RoFormerLiteModel, stack_config("default", "sdpa"))
    causal = build(RoFormerLiteModel, stack_config("default", "sdpa", is_decoder=True))
    ids = torch.randint(5, VOCAB, (2, 9), generator=generator)
    triangle = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(model(ids, triangle)[0], causal(ids, use_cache=False)[0], **TOLERANCE)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"attention_mask": torch.ones(2, 5)}, r"attention_mask has shape \(2, 5\).*\(2, 9\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 9])}, r"cu_seq_lens_q=\[0, 5, 9\].*18"),
        ({"inputs_embeds": torch.zeros(2, 9, 32)}, "exactly one of input_ids and inputs_embeds"),
    ],
)
def test_inputs_that_do_not_fit_are_named(kwargs, message):
    model = build(RoFormerLiteModel, stack_config())
    with pytest.raises(ValueError, match=message):
        model(torch.full((2, 9), 5), **kwargs)


def test_too_long_for_learned_positions_but_not_for_rotary_ones():
    ids = torch.full((1, 65), 7)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        build(RoFormerLiteModel, stack_config("learned-typed"))(ids)
    assert build(RoFormerLiteModel, stack_config())(ids)[0].shape == (1, 65, 32)


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    "inputs",
    [
        {"position_ids": torch.arange(8)[None] * 3},
        {"attention_mask": torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1]]), "position_ids": torch.arange(8)[None]},
        {"attention_mask": torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1]])},
    ],
    ids=["gaps", "hole with positions", "hole"],
)
def test_windows_count_real_tokens_in_every_form(inputs, is_decoder):
    ids = torch.randint(5, VOCAB, (1, 8), generator=torch.Generator().manual_seed(0))
    sdpa = build(RoFormerLiteModel, stack_config("sliding", is_decoder=is_decoder))
    eager = build(RoFormerLiteModel, stack_config("sliding", "eager", is_decoder=is_decoder))
    expected = sdpa(ids, use_cache=False, **inputs)[0]
    torch.testing.assert_close(eager(ids, use_cache=False, **inputs)[0], expected, **TOLERANCE)
    dense = sdpa(ids, use_cache=False, output_hidden_states=True, **inputs)[0]
    torch.testing.assert_close(dense, expected, **TOLERANCE)


@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    "inputs",
    [
        {
            "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 0]]),
            "attention_mask": torch.tensor([[1] * 7 + [0] * 2]),
        },
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])},
        {"cu_seq_lens_q": torch.tensor([0, 4, 9], dtype=torch.int32)},
    ],
    ids=["mask", "positions", "borders"],
)
def test_compiled_graphs_keep_packed_documents_apart(inputs, is_decoder):
    torch.compiler.reset()
    model = build(RoFormerLiteModel, stack_config(is_decoder=is_decoder))
    ids = torch.randint(5, VOCAB, (1, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(ids, use_cache=False, **inputs)[0]
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(ids, use_cache=False, **inputs)[0], expected, **TOLERANCE)


def test_a_source_without_tokens_gives_nothing_in_every_form():
    memory, mask = torch.randn(2, 4, 32), torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]])
    fields = {"is_decoder": True, "add_cross_attention": True}
    inputs = {"encoder_hidden_states": memory, "encoder_attention_mask": mask, "use_cache": False}
    ids = torch.randint(5, VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    outputs = [
        build(RoFormerLiteModel, stack_config(backend=b, **fields))(ids, **inputs)[0] for b in ("sdpa", "eager")
    ]
    torch.testing.assert_close(*outputs, **TOLERANCE)


def test_token_dropout_of_fewer_tokens_than_rows():
    model = build(RoFormerLiteModel, stack_config(token_dropout_mask_id=4))
    ids, mask = torch.full((6, 3), 7), torch.zeros(6, 3, dtype=torch.long)
    mask[5, 1] = 1
    torch.testing.assert_close(model(ids, mask)[0][5, 1], model(ids[:1, :1])[0][0, 0], **TOLERANCE)
    four = torch.ones(6, 1, 3, 3, dtype=torch.bool)
    torch.testing.assert_close(model(ids, four)[0], model(ids)[0], **TOLERANCE)


def test_packed_borders_of_a_pair_are_refused():
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    ids = torch.randint(5, VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(ids, decoder_input_ids=ids, cu_seq_lens_q=torch.tensor([0, 3, 10], dtype=torch.int32))
