"""Exported graphs of padding-free models compute only real tokens, and give the numbers of the
padded stock models in onnxruntime and in OpenVINO."""

import copy
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
import transformers
from conftest import (
    Batch,
    assert_close,
    build,
    data_beside,
    mask_of,
    random_ids,
    stack_config,
)
from tiny_models import tiny_model
from transformers.exporters import AutoExportConfig, AutoHfExporter

import hf_roformer_lite as rl
from hf_roformer_lite import padding_free
from roformer_lite.export.graphs import export_model

# Without this, OpenVINO would report its import over the network.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
import openvino  # noqa: E402

Outputs = list[torch.Tensor]

DATA = data_beside(__file__)
STOCK: dict[str, str] = DATA["parts"]
OWN = {
    "plain": lambda: build(rl.RoFormerLiteModel, stack_config()),
    "windows": lambda: build(rl.RoFormerLiteModel, stack_config("sliding")),
    "masked": lambda: build(rl.RoFormerLiteForMaskedLM, stack_config()),
    "rows": lambda: build(rl.RoFormerLiteForSequenceClassification, stack_config()),
    "tokens": lambda: build(rl.RoFormerLiteForTokenClassification, stack_config()),
}


def rows(lengths: list[int], length: int, left: tuple[int, ...] = ()) -> torch.Tensor:
    mask = mask_of(lengths, length)
    for row in left:
        mask[row] = mask[row].flip(0)
    return mask


HOLES = rows([9, 7, 5, 4], 9)
HOLES[0, 3:5] = HOLES[2, 1] = 0
MASKS = {
    "mixed": rows([9, 5, 1, 7], 9),
    "one padded row": rows([4], 11),
    "full": rows([8, 8, 8], 8),
    "both sides": rows([9, 5, 2, 7], 9, left=(1, 3)),
    "holes": HOLES,
    "an empty row": rows([9, 0, 4], 9),
    "one token": rows([1], 1),
    "only empty rows": rows([0, 0], 3),
    "long rows": rows([2, 3, 30, 2, 22, 3], 40, left=(1, 4)),
}


def inputs_for(mask: torch.Tensor) -> Batch:
    return {"input_ids": random_ids(*mask.shape) * mask, "attention_mask": mask}


def outputs_of(model: torch.nn.Module, inputs: Batch) -> Outputs:
    options = {"use_cache": False} if "Qwen3" in type(model).__name__ else {}
    with torch.no_grad():
        output = model(**inputs, **options)
    return [value for value in output.values() if isinstance(value, torch.Tensor)]


def stock_model(class_name: str) -> torch.nn.Module:
    model_class = getattr(transformers, class_name)
    model = tiny_model(model_class.config_class.model_type, model_class)
    return model.get_submodule(STOCK[class_name])


def export_stock(model: torch.nn.Module, path: Path) -> None:
    config = AutoExportConfig.from_dict(
        {"export_format": "onnx", "dynamic": True, "ort_fusions": "cpu"}
    )
    sample = inputs_for(MASKS["mixed"][:2, :5])
    if "Qwen3" in type(model).__name__:
        sample["use_cache"] = False
    exported = AutoHfExporter.from_config(config).export(model, sample, config)
    onnx_ir.save(exported.components["model"].program, str(path))


def export_own(model: torch.nn.Module, path: Path) -> None:
    onnx_ir.save(export_model(model).components["model"].program, str(path))


def run_by_onnxruntime(path: Path) -> Callable[[dict[str, Any]], list[Any]]:
    session = onnxruntime.InferenceSession(path)
    return lambda given: session.run(None, given)


def run_by_openvino(path: Path) -> Callable[[dict[str, Any]], list[Any]]:
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda given: list(compiled(given).values())


def assert_same_outputs(
    stock: torch.nn.Module, path: Path, masks: dict[str, torch.Tensor] = MASKS
) -> None:
    for run in (run_by_onnxruntime(path), run_by_openvino(path)):
        for mask in masks.values():
            inputs = inputs_for(mask)
            expected = outputs_of(stock, inputs)
            found = run({key: value.numpy() for key, value in inputs.items()})
            for one, other in zip(found, expected, strict=True):
                one = torch.as_tensor(np.asarray(one))
                assert one.shape == other.shape
                if other.shape[:2] == mask.shape:
                    one = one[mask == 1]
                    other = other[mask == 1]
                assert_close(one, other, rtol=1e-5)


def operations_of(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def assert_flat(path: Path) -> None:
    """The graph finds the real tokens once, and no operation between layers writes to places."""
    counts = operations_of(path)
    assert counts["NonZero"] == 1
    assert not any(re.match("Scatter", name) for name in counts)


def assert_short_rows_stay_short(path: Path) -> None:
    """Attention does not compare all rows as if they were as long as the longest one."""
    graph = onnx.load(path)
    names = [node.output[0] for node in graph.graph.node if node.op_type == "Softmax"]
    graph.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    inputs = inputs_for(rows([32] + 7 * [2], 32))
    weights = session.run(names, {key: value.numpy() for key, value in inputs.items()})
    pairs = sum(matrix.size // matrix.shape[1] for matrix in weights)
    # The long row and the short ones are two groups in each layer.
    assert pairs < len(names) * 32**2


@pytest.mark.slow
@pytest.mark.parametrize("class_name", STOCK)
def test_stock_models(class_name, tmp_path):
    stock = stock_model(class_name)
    path = tmp_path / "model.onnx"
    export_stock(padding_free(stock_model(class_name)), path)
    assert_flat(path)
    if class_name not in DATA["one_group"]:
        assert_short_rows_stay_short(path)
    assert_same_outputs(stock, path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
def test_own_models(kind, tmp_path):
    model = OWN[kind]().eval()
    padded = padding_free(copy.deepcopy(model), False)
    path = tmp_path / "model.onnx"
    export_own(model, path)
    assert_flat(path)
    assert_short_rows_stay_short(path)
    assert_same_outputs(padded, path)


@pytest.mark.slow
def test_a_padded_graph(tmp_path):
    """A model that is switched off before has an ordinary graph."""
    model = padding_free(OWN["plain"](), False)
    path = tmp_path / "model.onnx"
    export_own(model, path)
    assert operations_of(path)["NonZero"] == 0
    assert_same_outputs(model, path)


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    "fields",
    DATA["fields"],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_any_number_of_rows(fields, enabled, tmp_path):
    """The number of rows of the trace, two, is no constant of the graph, nor is that of tokens."""
    model = build(rl.RoFormerLiteForSequenceClassification, stack_config(**fields))
    padded = padding_free(copy.deepcopy(model), False)
    path = tmp_path / "model.onnx"
    export_own(padding_free(model, enabled), path)
    lengths = [9, 5, 1, 7, 2, 9, 4, 3, 6, 8, 5, 2]
    masks = {str(count): rows(lengths[-count:], 9) for count in (1, 2, 3, 7, 12)}
    assert_same_outputs(padded, path, masks)


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [True, False])
def test_exporters_of_torch(is_new, tmp_path):
    """The new exporter writes a flat graph, and the one for traces a padded graph."""
    stock = stock_model("BertForSequenceClassification")
    model = padding_free(copy.deepcopy(stock))
    sample = inputs_for(MASKS["mixed"][:2, :5])
    path = tmp_path / "model.onnx"
    axes = {0: "batch", 1: "length"}
    option = "dynamic_shapes" if is_new else "dynamic_axes"
    torch.onnx.export(
        model,
        kwargs=sample,
        f=path,
        input_names=list(sample),
        dynamo=is_new,
        **{option: dict.fromkeys(sample, axes)},
    )
    assert (operations_of(path)["NonZero"] > 0) == is_new
    # These exporters write another attention for rows without a token, in the stock model, too.
    masks = {name: mask for name, mask in MASKS.items() if mask.any(dim=1).all()}
    assert_same_outputs(stock, path, masks)


@pytest.mark.slow
def test_a_model_that_was_exported():
    """The exporters leave a `forward` on the model, which must not hide that of `padding_free`."""
    stock = stock_model("BertForSequenceClassification")
    model = copy.deepcopy(stock)
    config = AutoExportConfig.from_dict({"export_format": "dynamo", "dynamic": True})
    inputs = inputs_for(MASKS["mixed"])
    for enabled in (True, False, True):
        padding_free(model, enabled)
        AutoHfExporter.from_config(config).export(model, inputs, config)
        expected = outputs_of(stock, inputs)
        assert_close(outputs_of(model, inputs), expected, rtol=1e-5)


@pytest.mark.slow
def test_question_answering_computes_padding(tmp_path):
    """The probability of an answer depends on the scores of padding."""
    stock = tiny_model("bert", transformers.BertForQuestionAnswering)
    path = tmp_path / "model.onnx"
    export_stock(padding_free(copy.deepcopy(stock)), path)
    run = run_by_onnxruntime(path)
    inputs = inputs_for(MASKS["mixed"])
    found = run({key: value.numpy() for key, value in inputs.items()})
    assert_close([torch.as_tensor(one) for one in found], outputs_of(stock, inputs), rtol=1e-5)
