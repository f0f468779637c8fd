"""Padding-free models can be compiled, in parts or as a whole."""

import copy
import random
from typing import Any

import pytest
import torch
from accelerate.utils import compile_regions
from comparisons import (
    VOCAB,
    assert_same_gradients,
    batch_for,
    batch_of_pairs,
    build,
    pair,
)
from conftest import assert_close, positions_of
from torch._dynamo.utils import counters

import hf_roformer_lite as rl
from hf_roformer_lite import padding_free


@pytest.mark.parametrize(
    "name, num_tokens",
    [("bert tokens", 24), ("bert tokens", 35), ("llama", 24), ("BartForConditionalGeneration", 29)],
)
def test_a_whole_graph_computes_no_padding(name, num_tokens):
    """In one graph, a row of which a label of padding is counted is computed whole, and so are no
    other rows of a target or of the head."""
    stock, free = pair(name)
    batch = batch_of_pairs() if name.startswith("Bart") else batch_for(name)
    if num_tokens == 35:
        batch["labels"][2, 5] = 1
    sizes = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        class Counted(torch.fx.Interpreter):
            def call_function(self, target, args, kwargs):
                if target is torch.nn.functional.linear:
                    sizes.append(args[0][..., 0].numel())
                return super().call_function(target, args, kwargs)

        return Counted(graph).run

    torch.compiler.reset()
    compiled = torch.compile(free, backend=count, fullgraph=True, dynamic=True)
    assert_same_gradients(compiled, stock, batch)
    assert max(sizes) - num_tokens in (0, 1)


@pytest.mark.parametrize("training", [False, True])
def test_packed_documents_stay_apart(training):
    """Their labels show that no text is continued, so that no cache is made."""
    free = padding_free(build("LlamaForCausalLM")).train(training)
    ids = torch.randint(5, VOCAB, (1, 17))
    positions = positions_of((6, 4, 7))
    packed = {"input_ids": ids, "position_ids": positions, "labels": ids}
    expected = free(**packed).loss
    torch.compiler.reset()
    compiled = torch.compile(free, backend="eager", dynamic=True)
    assert_close(compiled(**packed).loss, expected)


@pytest.mark.parametrize("way", "eager checkpointing encoder base".split())
def test_what_changes_afterwards(way):
    """A padding-free model gets another attention implementation or gradient checkpointing, or
    parts of it are compiled."""
    name = "bert mlm" if way == "base" else "bert classes"
    stock, free = pair(name)
    batch = batch_for(name)
    torch.compiler.reset()
    if way == "eager":
        free.set_attn_implementation(way)
    elif way == "checkpointing":
        free.gradient_checkpointing_enable()
        free.enable_input_require_grads()
    elif way == "encoder":
        free.bert.encoder.compile(backend="eager")
    else:
        free.bert.compile(backend="eager")
    assert_same_gradients(free, stock, batch)


OWN = rl.RoFormerLiteConfig(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
)
# Each entry has the number of graphs after the first batch of padded rows, and after twenty.
COMPILED = {
    "bert": (lambda: compile_regions(padding_free(build("bert mlm")), backend="eager"), 6, 11),
    "own": (
        lambda: compile_regions(rl.RoFormerLiteForMaskedLM(OWN), backend="eager"),
        7,
        12,
    ),
    "whole": (lambda: compiled_as_a_whole("bert mlm"), 1, 2),
}


def compiled_as_a_whole(name: str) -> torch.nn.Module:
    model = padding_free(build(name))
    model.compile(backend="eager")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
def test_compiled_graphs_are_few(kind):
    """Further lengths of rows add no graphs. Full batches, and evaluations between steps of
    training, add some. No function reaches the limit beyond which torch stops compiling it."""
    make_compiled, num_first, num_all = COMPILED[kind]
    torch.compiler.reset()
    counters.clear()
    model = make_compiled()
    generator = random.Random(0)
    num_graphs = []
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for step in range(32):
            lengths = [generator.randint(2, 30) for _ in range(6)]
            model.train(step < 20 or step % 4 < 2)
            if step >= 20 and step % 2 == 1:
                lengths = [max(lengths)] * 6
            loss = model(**batch_for("bert mlm", lengths=tuple(lengths))).loss
            if model.training:
                loss.backward()
            num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[0] == num_first
    assert num_graphs[1:20] == [num_all] * 19
    assert num_graphs[-1] <= 3 * num_all


def test_a_copy_of_a_compiled_model_has_its_own_weights():
    model = compiled_as_a_whole("bert classes")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
        logits = copied(torch.arange(1, 7)[None]).logits
    assert not logits.any()
