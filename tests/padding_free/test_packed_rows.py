"""Documents that lie packed in a row are computed as if each had a row of its own."""

import copy
import gc
import weakref

import pytest
import torch
from comparisons import (
    assert_close,
    assert_same_gradients,
    batch_for,
    build,
    pair,
)
from conftest import positions_of, random_ids
from transformers import DataCollatorWithFlattening

from hf_roformer_lite import padding_free


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_packed_rows_with_labels_are_kept_apart(name):
    """The causal masks of transformers separate documents only without a mask and a cache."""
    stock, free = pair(name)
    ids = random_ids(1, 12)
    pieces = ids.split([5, 1, 6], dim=1)
    alone = torch.cat([stock(piece).logits for piece in pieces], dim=1)
    rows = [{"input_ids": piece[0].tolist()} for piece in pieces]
    # The borders of the documents are given in two ways.
    flat = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    assert_close(free(**flat).logits, alone)
    inputs = {name: flat[name] for name in ("input_ids", "position_ids", "labels")}
    assert not torch.allclose(stock(**inputs).logits, alone, atol=1e-3)
    # With states of all layers, the layers compute the batch.
    for more in ({}, {"output_hidden_states": True}):
        assert_close(free(**inputs, **more).logits, alone)
    # With a mask, documents are not separated.
    masked = {**inputs, "attention_mask": torch.ones_like(ids)}
    assert_close(free(**masked).logits, stock(**masked).logits)
    assert_same_gradients(free, stock, {**inputs, "use_cache": False})


class Mixing(torch.nn.Embedding):
    """A convolution before the layers, which lets documents meet outside attention."""

    def forward(self, ids):
        states = super().forward(ids)
        before = torch.nn.functional.pad(states, (0, 0, 1, 0))[:, :-1]
        return states + 0.1 * before


@pytest.mark.parametrize(
    "class_name",
    ["LlamaForCausalLM", "LlamaForCausalLM, mixing", "BloomForCausalLM", "BertForMaskedLM"],
)
def test_packed_rows_equal_those_of_the_stock_model(class_name):
    """All of these models but the first one do not separate the documents of a row."""
    stock = build(class_name.removesuffix(", mixing"))
    if "mixing" in class_name:
        stock.model.embed_tokens.__class__ = Mixing
    free = padding_free(copy.deepcopy(stock))
    ids = random_ids(1, 9)
    positions = positions_of((5, 4))
    inputs = {"input_ids": ids, "position_ids": positions}
    if "Bert" not in class_name:
        inputs["use_cache"] = False
    assert_close(free(**inputs).logits, stock(**inputs).logits)


def test_states_of_packed_rows_are_let_go():
    """A flat row that is a view of the batch does not keep the batch alive."""
    free = padding_free(build("LlamaModel"))
    states = []
    free.get_input_embeddings().register_forward_hook(
        lambda module, args, output: states.append(weakref.ref(output))
    )
    positions = positions_of((5, 4, 3))
    for _ in range(3):
        free(random_ids(1, 12), position_ids=positions, use_cache=False)
    vectors = torch.randn(4, 12, 64, requires_grad=True)
    free(inputs_embeds=vectors, attention_mask=batch_for("llama")["attention_mask"])
    states.append(weakref.ref(vectors))
    del vectors
    gc.collect()
    assert [state() for state in states] == [None] * 4
