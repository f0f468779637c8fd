"""Exported graphs: the same numbers as the model at sizes they were not traced with, the same tokens as `generate`."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config
from transformers import AutoTokenizer, DynamicCache, EncoderDecoderCache
from transformers.exporters import ExportedModel

import hf_roformer_lite as rl
from roformer_lite import errors
from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.export.formats import check_libraries
from roformer_lite.export.graphs import export_model, sample_inputs

SHAPES = [(1, 1), (1, 2), (3, 1), (4, 40), (2, 5)]


def batch(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Tokens with padding on the right, on the left and in the middle."""
    generator = torch.Generator().manual_seed(rows * length)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1:2, length // 2 + 1 :] = 0
    mask[2:3, : length // 2] = 0
    mask[3:4, 1:-1:2] = 0
    return {"input_ids": torch.randint(5, VOCAB, (rows, length), generator=generator), "attention_mask": mask}


def assert_same_everywhere(model, exported, name: str, shapes=SHAPES) -> None:
    for rows, length in shapes:
        inputs = batch(rows, length)
        if model.config.type_vocab_size:
            inputs["token_type_ids"] = inputs["input_ids"] % model.config.type_vocab_size
        with torch.no_grad():
            expected = model(**inputs)[name]
        torch.testing.assert_close(exported(**inputs)[name], expected, rtol=0, atol=1e-5, msg=f"{rows} x {length}")


SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("partial-rotary-value", "parallel-heads", "walkthrough")
]


@pytest.mark.parametrize("name", ["sliding", *SLOW])
def test_torch_takes_any_size(name):
    """By transformers' exporters, and without them, as their patches could hide what the model itself cannot do."""
    model = build(rl.RoFormerLiteModel, stack_config(name))
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    shapes = {"input_ids": sizes, "attention_mask": sizes}
    if name == "sliding":
        program = torch.export.export(model, (), sample_inputs(model), dynamic_shapes=shapes, strict=False).module()
    else:
        program = export_model(model, "torch")
    assert_same_everywhere(model, program, "last_hidden_state", SHAPES[3:] if name == "sliding" else SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pooling"), [("sliding", "mean"), ("learned-typed", "last")])
def test_onnx_takes_any_size(name, pooling, ragged_input):
    model = build(rl.RoFormerLiteForSequenceClassification, stack_config(name, classifier_pooling=pooling))
    exported = export_model(model, "onnx")
    assert_same_everywhere(model, exported, "logits")
    if name == "sliding":  # a row without tokens
        torch.testing.assert_close(exported(**ragged_input).logits, model(**ragged_input).logits, rtol=0, atol=1e-5)


def test_openvino(tmp_path):
    """In a process that reads the files alone, with the hint without which some CPUs multiply in bfloat16."""
    model = build(rl.RoFormerLiteForSequenceClassification, stack_config("sliding"))
    export_model(model, "openvino").save_pretrained(tmp_path)
    inputs = batch(4, 40)
    np.savez(tmp_path / "inputs.npz", **{name: tensor.numpy() for name, tensor in inputs.items()})
    code = """
import sys
sys.modules |= dict.fromkeys(("torch", "transformers", "openvino_telemetry"))
import numpy, openvino
model = openvino.Core().compile_model("openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
numpy.save("logits.npy", model(dict(numpy.load("inputs.npz")))["logits"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = model(**inputs).logits
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), expected, rtol=0, atol=1e-5)
    with pytest.raises(InputError, match="RoFormerLiteForCausalLM generates"):
        export_model(build(rl.RoFormerLiteForCausalLM, stack_config(is_decoder=True)), "openvino")
    assert sys.modules["openvino_telemetry"] is None


@pytest.mark.slow
def test_vectors_and_choices():
    model = build(rl.RoFormerLiteModel, stack_config(vocab_size=0))
    vectors = {"inputs_embeds": torch.randn(3, 9, 32), "attention_mask": batch(3, 9)["attention_mask"]}
    states = export_model(model, "torch")(**vectors).last_hidden_state
    torch.testing.assert_close(states, model(**vectors).last_hidden_state, rtol=0, atol=1e-5)
    model = build(rl.RoFormerLiteForMultipleChoice, stack_config())
    choices = {name: tensor.view(3, 4, 7) for name, tensor in batch(12, 7).items()}
    torch.testing.assert_close(
        export_model(model, "torch")(**choices).logits, model(**choices).logits, rtol=0, atol=1e-5
    )


def greedy(model, exported, inputs: dict[str, torch.Tensor], steps: int) -> torch.Tensor:
    """Tokens `(B, steps)`, by the graphs alone."""
    mask, pair = inputs["attention_mask"], model.config.is_encoder_decoder
    decoder = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=decoder)  # a torch program takes its caches as `generate` makes them
    name = "decoder_input_ids" if pair else "input_ids"
    new, tokens = inputs["input_ids"], []
    if pair:
        cache, new = EncoderDecoderCache(cache, DynamicCache(config=decoder)), torch.full((len(mask), 1), 2)
        encoder_outputs = exported.runners["encoder"](**inputs)
    for number in range(steps):
        if pair:
            given = {"encoder_outputs": encoder_outputs}
        else:
            given = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, -new.shape[1] :]}
        runner = exported.runners["decode" if number else "prefill"]
        outputs = runner(**{name: new, "attention_mask": mask, **given, "past_key_values": cache})
        new, cache = outputs.logits[:, -1:].argmax(-1), outputs.past_key_values
        tokens.append(new)
        if not pair:
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return torch.cat(tokens, 1)


@pytest.mark.parametrize(
    ("format", "model_class", "name"),
    [
        pytest.param("torch", rl.RoFormerLiteForConditionalGeneration, "default", marks=pytest.mark.slow),
        ("torch", rl.RoFormerLiteForCausalLM, "grouped-gated-rms"),
        pytest.param("onnx", rl.RoFormerLiteForCausalLM, "sliding", marks=pytest.mark.slow),
    ],
)
def test_same_tokens(format, model_class, name):
    pair = model_class is rl.RoFormerLiteForConditionalGeneration
    if pair:
        config = seq2seq_config(name, tie_word_embeddings=False)
    else:
        config = stack_config(name, tie_word_embeddings=False)
    model = build(model_class, config)
    exported = export_model(model, format)
    for rows, length in ((3, 9), (1, 4)):
        inputs = batch(rows, length)
        if not pair:
            inputs["attention_mask"] = inputs["attention_mask"].sort(1).values  # generation wants its padding left
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        expected = model.generate(**inputs, **options)[:, 1 if pair else length :]
        assert len(expected[0].unique()) > 1
        assert torch.equal(greedy(model, exported, inputs, 12), expected)


def test_command_line(tmp_path, capsys):
    tokenizer = rl.RoFormerLiteTokenizer.train(["what a fine film", "dull and far too long"] * 8, vocab_size=300)
    config = rl.RoFormerLiteConfig.from_preset("tiny", vocab_size=len(tokenizer), num_labels=3)
    model = build(rl.RoFormerLiteForSequenceClassification, config)
    model.bfloat16().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format", "torch"]) == 0
    assert capsys.readouterr().out == f"RoFormerLiteForSequenceClassification as torch, model: {tmp_path / 'out'}\n"
    inputs = AutoTokenizer.from_pretrained(tmp_path / "out")(
        ["a fine film", "dull"], padding=True, return_tensors="pt"
    )
    exported = ExportedModel.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(exported(**inputs).logits, model.float()(**inputs).logits, rtol=0, atol=1e-5)

    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format", "torch"]) == 2
    assert "exists already" in capsys.readouterr().err
    for options, message in (
        (["--format", "tflite"], "choose one of onnx, torch, openvino, ctranslate2, gguf"),
        (
            ["--format", "openvino", "--quantization", "int8"],
            "--quantization int8: --format openvino has no such type; onnx, ctranslate2, gguf have some",
        ),
        (["--format", "gguf", "--embeddings"], "--embeddings is for --format onnx and openvino"),
        (["--format", "ctranslate2", "--quantization", "int4"], "choose one of int8, int8_float32"),
        (["--format", "ctranslate2"], "RoFormerLiteForSequenceClassification cannot be exported"),
    ):
        assert main(["export", str(tmp_path / "model"), str(tmp_path / "new"), *options]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs onnx, onnxruntime, onnxscript.*hf_roformer_lite\[export\]"):
        check_libraries("onnx")


def test_what_cannot_be_exported():
    decoder = build(rl.RoFormerLiteModel, stack_config(is_decoder=True, add_cross_attention=True))
    with pytest.raises(InputError, match="export the whole pair"):
        export_model(decoder)
    sliding = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding"))
    with pytest.raises(InputError, match="format='onnx'"):
        export_model(sliding, "torch")
