"""Exported graphs give the numbers of the model at sizes with which they were not traced, and the
tokens of `generate`."""

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config
from saved_models import save_model
from transformers import AutoTokenizer, DynamicCache
from transformers.exporters import ExportedModel

import hf_roformer_lite as rl
from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.export.graphs import export_model, sample_inputs
from roformer_lite.saved.saved_model import load_model

SHAPES = [(1, 1), (1, 2), (3, 1), (4, 40), (2, 5)]


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return tokens with padding on the right, on the left and in the middle."""
    generator = torch.Generator().manual_seed(rows * length)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1:2, length // 2 + 1 :] = 0
    mask[2:3, : length // 2] = 0
    mask[3:4, 1:-1:2] = 0
    return {
        "input_ids": torch.randint(5, VOCAB, (rows, length), generator=generator),
        "attention_mask": mask,
    }


def assert_same_everywhere(model, exported, shapes) -> None:
    for rows, length in shapes:
        inputs = batch(rows, length)
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
        found = exported(**inputs)["last_hidden_state"]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, msg=f"{rows} x {length}")


def test_torch_exports_a_model_by_itself():
    """The patches of transformers' exporters could hide an operation that cannot be exported."""
    model = build(rl.RoFormerLiteModel, stack_config("sliding"))
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    program = torch.export.export(
        model, (), sample_inputs(model), dynamic_shapes=shapes, strict=False
    )
    assert_same_everywhere(model, program.module(), SHAPES[3:])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["partial-rotary-value", "parallel-heads", "walkthrough"])
def test_torch_takes_any_size(name):
    model = build(rl.RoFormerLiteModel, stack_config(name))
    assert_same_everywhere(model, export_model(model, "torch"), SHAPES)


@pytest.mark.slow
def test_causal_models_with_their_cache():
    """The exported programs give the tokens of `generate`. (ONNX, pairs, sampling and beams are
    tested in test_onnx.py.)"""
    config = stack_config("grouped-gated-rms", tie_word_embeddings=False)
    model = build(rl.RoFormerLiteForCausalLM, config)
    exported = export_model(model, "torch")
    inputs = batch(rows=3, length=9)
    # A mask that is sorted has all its padding on the left.
    mask = inputs["attention_mask"].sort(dim=1).values
    inputs["attention_mask"] = mask
    generated = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None)
    expected = generated[:, 9:]
    assert len(expected[0].unique()) > 1
    taken = exported.components["decode"].metadata.kwargs
    name_of_cache = "cache" if "cache" in taken else "past_key_values"
    cache = DynamicCache(config=model.config)
    new = inputs["input_ids"]
    tokens = []
    for runner in ["prefill", *["decode"] * 11]:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -new.shape[1] :]
        given = {
            "input_ids": new,
            "attention_mask": mask,
            "position_ids": positions,
            name_of_cache: cache,
        }
        outputs = exported.runners[runner](**given)
        new = outputs.logits[:, -1:].argmax(-1)
        cache = outputs[name_of_cache]
        tokens.append(new)
        mask = torch.cat([mask, mask.new_ones(3, 1)], dim=1)
    assert torch.equal(torch.cat(tokens, dim=1), expected)


def test_command_line(tmp_path):
    model = load_model(save_model("classify", tmp_path / "model")).bfloat16()
    model.save_pretrained(tmp_path / "model")
    command = ["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format", "torch"]
    assert main(command) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(["a fine film", "fine"], padding=True, return_tensors="pt")
    # A torch program is a pickle, which transformers 5.24 reads only with this option.
    exported = ExportedModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    torch.testing.assert_close(
        exported(**inputs).logits, model.float()(**inputs).logits, rtol=0, atol=1e-5
    )

    command = ["export", str(tmp_path / "model"), str(tmp_path / "new"), "--format", "ctranslate2"]
    assert main(command) == 2
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_exported():
    decoder = build(rl.RoFormerLiteModel, stack_config(is_decoder=True, add_cross_attention=True))
    with pytest.raises(InputError, match="export the whole pair"):
        export_model(decoder)
    sliding = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding"))
    with pytest.raises(InputError, match="format='onnx'"):
        export_model(sliding, "torch")
