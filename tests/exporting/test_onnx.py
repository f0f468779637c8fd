"""A directory that was exported to ONNX needs no other files for the answers of the model."""

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from answering import assert_same_answers, shown_answers
from conftest import build
from program import change_fields, evaluated, refused, run, write_rows
from saved_models import save_model
from transformers import AutoModel, AutoTokenizer

from hf_roformer_lite.conversion.checkpoints import load_model
from roformer_lite.answers import open_model
from roformer_lite.errors import InputError
from roformer_lite.export.sentence_encoder import SentenceEncoder
from roformer_lite.saved.saved_model import (
    load_config,
    model_class_of,
    require_tokenizer,
    set_input_names,
)

LINES = [
    "what a fine film it is",
    "far too long",
    "",
    "fine",
    "a film that is far too long, and dull as well",
]
# The answers of these kinds of models are compared with several options of `predict`.
OPTIONS: dict[str, list[dict]] = {
    "classify": [{}, {"top_k": 3}],
    "labels": [{"threshold": 0.3}],
    "causal": [{"beams": 1, "max_new_tokens": 4}],
}


def check_graph(case: str, folder: Path) -> None:
    """The graph gives the answers of the model, whatever the order and the batches, and also next
    to a text that is much longer."""
    save_model(case, folder / "model")
    run("export", folder / "model", folder / "out")
    model = open_model(folder / "model")
    exported = open_model(folder / "out")
    lines = LINES
    if case != "mlm":
        lines = [*LINES, "fine film " * 300]
    inputs = lines
    if case == "pairs":
        inputs = [f"{line}\t{line[:4]} [MASK]" for line in lines]
    elif case == "mlm":
        inputs = [f"{line} [MASK] film" for line in lines]
    for given in OPTIONS.get(case, [{}]):
        expected = shown_answers(model, inputs, batch_size=2, **given)
        assert len({answer.line for answer in expected}) > 1
        for batch_size, order in ((1, 1), (len(inputs), -1)):
            found = shown_answers(exported, inputs[::order], batch_size=batch_size, **given)
            columns = [answer.columns for answer in expected[::order]]
            assert_same_answers(columns, [answer.columns for answer in found])


@pytest.mark.slow
def test_classifier(tmp_path):
    check_graph("classify", tmp_path)
    assert "computes on the CPU" in refused("predict --device cuda", tmp_path / "out")
    graph = tmp_path / "out" / "onnx" / "model.onnx"
    # The file shows no path of this machine.
    assert str(Path(torch.__file__).parent).encode() not in graph.read_bytes()
    graph.write_bytes(b"{")
    assert "cannot be loaded" in refused("predict", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("case", "labels number pairs tag mlm".split())
def test_other_tasks(case, tmp_path):
    check_graph(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "has_segments"),
    [("pairs", False), ("pairs", True), ("seq2seq", True), ("causal", True)],
)
def test_a_graph_takes_what_its_tokenizer_returns(case, has_segments, tmp_path):
    """Models that generate ignore segments."""
    directory = save_model(case, tmp_path / "model")
    config = load_config(directory)
    getattr(config, "encoder", config).type_vocab_size = 2
    build(model_class_of(config, directory), config).save_pretrained(directory)
    if has_segments:
        tokenizer = require_tokenizer(directory)
        set_input_names(tokenizer, [*tokenizer.model_input_names, "token_type_ids"])
        tokenizer.save_pretrained(directory)
    check_graph(case, tmp_path)
    for path in (tmp_path / "out" / "onnx").glob("*.onnx"):
        names = {value.name for value in onnx.load(path).graph.input}
        assert ("token_type_ids" in names) == (has_segments and case == "pairs")


@pytest.mark.slow
def test_masks_are_drawn_as_in_the_training(tmp_path):
    """The seed and the batch size of the training determine which tokens `evaluate` masks."""
    model = save_model("mlm", tmp_path / "model")
    training = {"arguments": {"seed": 7, "per_device_eval_batch_size": 2}}
    change_fields(model / "results.json", training=training)
    run("export", model, tmp_path / "out")
    data = write_rows(tmp_path / "a.jsonl", [{"text": line} for line in LINES * 4 if line])
    expected = evaluated(model, data)["metrics"]["test"]
    assert evaluated(tmp_path / "out", data)["metrics"]["test"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_models_that_generate(tmp_path):
    """Exported graphs give the texts of the model.

    The loop is transformers' own, so the same random numbers are drawn. With beams, the
    rows of the cache change places. Graphs whose keys and values have the name of another version
    are not opened.
    """
    options = {
        "causal": [{"beams": 1, "max_new_tokens": 9}, {"max_new_tokens": 9}],
        "seq2seq": [{"max_new_tokens": 9}, {"beams": 3}],
        "causal with windows": [{"beams": beams, "max_new_tokens": 9} for beams in (1, 3)],
    }
    for case, each in options.items():
        directory = tmp_path / case
        out = tmp_path / f"{case}-onnx"
        save_model(case.removesuffix(" with windows"), directory)
        if case.endswith("windows"):
            layers = ["sliding_attention", "full_attention"]
            change_fields(directory / "config.json", layer_types=layers, sliding_window=3)
        run("export", directory, out)
        for given in each:
            answers = []
            for place in (directory, out):
                saved = open_model(place)
                torch.manual_seed(3)
                answers.append(shown_answers(saved, LINES, batch_size=5, **given))
            assert answers[0] == answers[1], (case, given)
            assert len({answer.line for answer in answers[0]}) > 1
        # transformers calls keys and values `cache` from 5.24 on, and `past_key_values` before.
        manifest = out / "onnx" / "export.json"
        written = manifest.read_text("utf-8")
        quoted = r'"(cache|past_key_values)(?=\\*")'
        manifest.write_text(re.sub(quoted, '"another_name', written), "utf-8")
        with pytest.raises(InputError, match="export the model again"):
            open_model(out)


@pytest.mark.slow
def test_layout_int8_and_embeddings(tmp_path):
    """The folder has the files for which transformers.js looks, and the graphs have fused
    operations and the two outputs of an encoder."""
    from onnxruntime import InferenceSession

    with_head = save_model("mlm", tmp_path / "with_head")
    for auto_class in (AutoModel, AutoTokenizer):
        auto_class.from_pretrained(with_head).save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    run("export", tmp_path / "model", out, quantization="int8")
    names = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names <= set(os.listdir(out))
    operations = {node.op_type for node in onnx.load(out / "onnx" / "model.onnx").graph.node}
    assert {"SkipLayerNormalization", "BiasGelu"} <= operations
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = tokenizer([line for line in LINES if line], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = SentenceEncoder(load_model(tmp_path / "model"))(**inputs)
    for name, tolerance in (("model", 1e-5), ("model_quantized", 0.2)):
        session = InferenceSession(out / "onnx" / f"{name}.onnx")
        outputs = [output.name for output in session.get_outputs()]
        assert outputs == ["last_hidden_state", "sentence_embedding"]
        found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        for ours, theirs in zip(expected.to_tuple(), found, strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=0, atol=tolerance)
