"""Torch programs give the numbers of the model at sizes with which they were not traced."""

import pytest
import torch
import transformers
from conftest import Batch, assert_close, build, mask_of, random_ids, seq2seq_config, stack_config
from program import refused, run
from saved_models import save_model
from test_flat_graphs import MASKS, inputs_for
from tiny_models import tiny_model
from transformers import AutoTokenizer
from transformers.exporters import ExportedModel

import hf_roformer_lite as rl
from hf_roformer_lite import padding_free
from hf_roformer_lite.conversion.checkpoints import load_model
from hf_roformer_lite.model import heads_roformer_lite
from roformer_lite.errors import InputError
from roformer_lite.export.graphs import export_model, sample_inputs


def assert_same_outputs(model, exported, masks: list[torch.Tensor]) -> None:
    for mask in masks:
        inputs = inputs_for(mask)
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state[mask == 1]
        found = exported(**inputs)["last_hidden_state"][mask == 1]
        assert_close(found, expected)


def test_torch_exports_a_model_by_itself():
    """The patches of transformers' exporters could hide an operation that cannot be exported."""
    model = build(rl.RoFormerLiteModel, stack_config("sliding"))
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    program = torch.export.export(
        model, (), sample_inputs(model), dynamic_shapes=shapes, strict=False
    )
    assert_same_outputs(model, program.module(), [MASKS["mixed"], MASKS["long rows"]])


def pair() -> torch.nn.Module:
    return build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config())


def stock_decoder() -> torch.nn.Module:
    fields = {"is_decoder": True, "add_cross_attention": True}
    return padding_free(tiny_model("bert", transformers.BertLMHeadModel, **fields))


@pytest.mark.parametrize("make_model", [pair, stock_decoder])
def test_torch_exports_a_target_with_its_source(make_model):
    """The sample has sources and targets of different lengths; others may have equal ones."""
    model = make_model()
    model.config.use_cache = False
    rows, length, target_length = (torch.export.Dim(name, min=2, max=64) for name in "bst")

    def inputs_of(lengths: list[int], target_length: int) -> Batch:
        mask = mask_of(lengths)
        target = random_ids(len(lengths), target_length)
        if make_model is pair:
            return {**inputs_for(mask), "decoder_input_ids": target}
        return {
            "encoder_hidden_states": torch.randn(*mask.shape, model.config.hidden_size),
            "encoder_attention_mask": mask,
            "input_ids": target,
            "attention_mask": torch.ones_like(target),
        }

    sample = inputs_of([9, 4, 7], 5)
    shapes = {
        name: {0: rows, 1: length if value.shape[1] == 9 else target_length}
        for name, value in sample.items()
    }
    program = torch.export.export(model, (), sample, dynamic_shapes=shapes, strict=False)
    for inputs in (inputs_of([6, 2], 6), inputs_of([3, 8, 8, 1], 4)):
        with torch.no_grad():
            expected = model(**inputs).logits
        assert_close(program.module()(**inputs).logits, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["partial-rotary-value", "parallel-heads", "walkthrough"])
def test_torch_takes_any_size(name):
    model = build(rl.RoFormerLiteModel, stack_config(name))
    assert_same_outputs(model, export_model(model, "torch"), [*MASKS.values()])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_multiple_choice(format):
    model = build(rl.RoFormerLiteForMultipleChoice, stack_config())
    exported = export_model(model, format)
    ids = random_ids(3, 4, 9)
    inputs = {"input_ids": ids, "attention_mask": (ids > 30).long()}
    with torch.no_grad():
        assert_close(exported(**inputs)["logits"], model(**inputs).logits)


def test_command_line(tmp_path):
    model = load_model(save_model("classify", tmp_path / "model")).bfloat16()
    model.save_pretrained(tmp_path / "model")
    run("export --format torch", tmp_path / "model", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(["a fine film", "fine"], padding=True, return_tensors="pt")
    # A torch program is a pickle, which transformers 5.24 reads only with this option.
    exported = ExportedModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert_close(exported(**inputs).logits, model.float()(**inputs).logits)
    for command in ("export", "convert"):
        message = refused(command, tmp_path / "out", tmp_path / "again")
        assert f"{tmp_path / 'out'}: it is an exported model" in message


@pytest.mark.slow
def test_a_graph_for_one_number_of_rows_is_not_written(tmp_path, monkeypatch):
    save_model("classify", tmp_path / "model")

    def pool_two_rows(hidden_states, how, attention_mask=None):
        return hidden_states.mean(dim=1)[torch.arange(len(hidden_states))]

    monkeypatch.setattr(heads_roformer_lite, "pool", pool_two_rows)
    message = refused("export --format torch", tmp_path / "model", tmp_path / "out")
    assert "cannot be exported as torch" in message
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported():
    decoder = build(rl.RoFormerLiteModel, stack_config(is_decoder=True, add_cross_attention=True))
    with pytest.raises(InputError, match="export the whole pair"):
        export_model(decoder)
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    encoder = build(rl.RoFormerLiteModel, stack_config(rope_parameters=dynamic))
    pair_config = seq2seq_config()
    pair_config.decoder.rope_parameters |= dynamic
    for model in (encoder, build(rl.RoFormerLiteForConditionalGeneration, pair_config)):
        for format in ("onnx", "torch"):
            with pytest.raises(InputError, match="rope_type='dynamic'.*with torch"):
                export_model(model, format)
    sliding = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding"))
    with pytest.raises(InputError, match="format='onnx'"):
        export_model(sliding, "torch")
