"""Converted models at work: long and packed inputs, generation, sentence embeddings, training, `from_pretrained`."""

import json
import subprocess
import sys

import pytest
import torch
import transformers
from conversion_cases import CASES, HF, PAIR, source_weights
from test_there_and_back import FAMILIES, noisy

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteModel,
    RoFormerLiteTokenizer,
)
from hf_roformer_lite.conversion import (
    CONVERTERS,
    ConversionError,
    ConvertedModel,
    convert,
    convert_checkpoint,
    export,
)
from hf_roformer_lite.conversion.verification import cast_exactly, computing_in
from roformer_lite.cli import main

STACKS = [name for name in FAMILIES if CASES[name][0]["architectures"][0].endswith("Model")]
SINGLE = [name for name in STACKS if "d_model" not in CASES[name][0]]
LEARNED = {"bert", "ernie", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert"}
TOLERANCE = {"rtol": 0, "atol": 1e-10}


def both(name, **fields):
    """The stock class and its conversion in float64, with the same noisy weights."""
    config = {**CASES[name][0], "num_hidden_layers": 3, **fields}
    reference, _ = source_weights(name, config)
    converter = CONVERTERS[name]
    reference = cast_exactly(noisy(reference), torch.float64)
    return converter, reference, convert(name, dict(reference.state_dict()), config)


@pytest.mark.parametrize("name", SINGLE)
def test_long_padded_and_packed(name):
    """Texts longer than every window (and than the lengths of training, where positions are not a table), alone,
    padded on the right, and several in one row."""
    length = 30 if name in LEARNED else 70
    converter, stock, model = both(name, **({"max_position_embeddings": 80} if "roformer" in name else {}))
    assert model.dtype == torch.float64
    pad = model.config.pad_token_id or 0
    texts = [torch.randint(6, 50, (n,)) for n in (length, 1, length // 2, 7)]
    with computing_in(torch.float64):
        states = [converter.run_reference(stock, as_batch([text], pad)).last_hidden_state[0] for text in texts]
    padded = model(**as_batch(texts, pad)).last_hidden_state
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    packed = model(torch.cat(texts)[None], position_ids=positions, use_cache=False).last_hidden_state[0]
    for row, expected in enumerate(states):
        torch.testing.assert_close(padded[row, : len(expected)], expected, **TOLERANCE)
    torch.testing.assert_close(packed, torch.cat(states), **TOLERANCE)
    everything = model(**as_batch(texts, pad), output_hidden_states=True).last_hidden_state
    torch.testing.assert_close(everything, padded, **TOLERANCE)


def as_batch(texts, pad):
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)
    lengths = torch.tensor([len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": torch.arange(ids.shape[1]) < lengths[:, None]}


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox", "modernbert-decoder"])
def test_causal_models_generate_alike(name):
    config = next(one for one in CASES[name] if one["architectures"][0].endswith("ForCausalLM"))
    reference, _ = source_weights(name, {**config, "num_hidden_layers": 4})
    model = convert(name, dict(noisy(reference).state_dict()), {**config, "num_hidden_layers": 4})
    prompt = torch.tensor([[7, 8, 9], [11, 12, 13]])
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": 2}
    for beams in (1, 3):
        theirs = reference.generate(prompt, num_beams=beams, **options)
        assert torch.equal(model.generate(prompt, num_beams=beams, **options), theirs)


@pytest.mark.parametrize("name", ["bart", "mbart", "marian"])
def test_pairs_generate_alike(name, tmp_path):
    """With what generation_config.json says: forced and forbidden tokens, beams."""
    config = {**CASES[name][1], "decoder_start_token_id": 2, "eos_token_id": 3}
    reference, _ = source_weights(name, config)
    noisy(reference).generation_config.update(num_beams=3, bad_words_ids=[[4]], forced_eos_token_id=3, max_length=12)
    reference.save_pretrained(tmp_path / "theirs")
    model = convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    assert model.generation_config.bad_words_ids == [[4]]
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    ids = torch.tensor([[7, 8, 9, 10], [11, 12, config.get("pad_token_id", 1), config.get("pad_token_id", 1)]])
    inputs = {"input_ids": ids, "attention_mask": (ids != config.get("pad_token_id", 1)).long()}
    expected = reference.generate(**inputs)
    assert torch.equal(model.generate(**inputs), expected) and torch.equal(again.generate(**inputs), expected)


def test_marian_without_stored_positions():
    """Its files hold no table of positions: the one that is computed is the same."""
    config = CASES["marian"][1]
    reference, weights = source_weights("marian", config)
    computed = {name: value for name, value in weights.items() if "embed_positions" not in name}
    stored, made = (convert("marian", one, config).state_dict() for one in (weights, computed))
    for name, tensor in stored.items():
        torch.testing.assert_close(made[name], tensor, rtol=0, atol=1e-7)


def test_from_pretrained(tmp_path):
    reference, weights = source_weights("llama", CASES["llama"][1])
    reference.half().save_pretrained(tmp_path / "llama")
    model = ConvertedModel.from_pretrained(tmp_path / "llama")
    assert type(model) is RoFormerLiteForCausalLM and model.dtype == torch.float16 and not model.training
    assert ConvertedModel.from_pretrained(str(tmp_path / "llama"), dtype=torch.float32).dtype == torch.float32
    model.save_pretrained(tmp_path / "ours")
    with pytest.raises(ConversionError, match="is a model of this package already"):
        ConvertedModel.from_pretrained(tmp_path / "ours")
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConversionError, match="model_type='gpt2' tells no source .*bert, ernie"):
        ConvertedModel.from_pretrained(tmp_path / "llama")


def test_what_cannot_be_converted():
    for name, fields, message in (
        ("gpt_neox", {"use_parallel_residual": True}, "use_parallel_residual=True"),
        ("albert", {"embedding_size": 24}, "embedding_size=24 is hidden_size"),
        ("roberta", {"architectures": ["RobertaForMaskedLM"], "hidden_act": "relu"}, "hidden_act='relu'.*'gelu'"),
        ("modernbert", {"architectures": ["ModernBertForMaskedLM"], "classifier_activation": "relu"}, "'relu'"),
        ("ultrabert", {"architectures": ["UltrabertForMaskedLM"]}, "two matrices before its output"),
        ("ultrabert", {"architectures": ["UltrabertForNothing"]}, "a ultrabert source is one of"),
        ("roformer_v2", {"architectures": ["RoFormerForCausalLM"]}, "the whole prompt from each of its tokens"),
        ("roformer_v2", {"is_decoder": True}, "is_decoder=True"),
        ("esm", {"is_decoder": True}, "is_decoder=True"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert(name, None, {**CASES[name][0], **fields})


def test_token_dropout_of_esm():
    """Mask tokens count as zeros, and the rest of their own document alone is larger."""
    config = {**CASES["esm"][1], "architectures": ["EsmForMaskedLM"]}
    reference, _ = source_weights("esm", config)
    model = convert("esm", dict(noisy(reference).state_dict()), config)
    texts = [torch.tensor([7, 5, 9, 5, 11]), torch.tensor([5, 5, 5]), torch.tensor([20, 21])]
    expected = [reference(text[None], torch.ones(1, len(text))).logits[0] for text in texts[:1] + texts[2:]]
    positions = torch.cat([torch.arange(len(text)) for text in texts])[None]
    packed = model(torch.cat(texts)[None], position_ids=positions).logits[0]
    assert packed.isfinite().all()
    torch.testing.assert_close(torch.cat((packed[:5], packed[8:])), torch.cat(expected), rtol=0, atol=1e-5)


def test_command_line_finds_the_families(tmp_path, capsys):
    torch.manual_seed(0)
    transformers.ModernBertModel(
        transformers.ModernBertConfig(**{**HF, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2})
    ).save_pretrained(tmp_path / "theirs")
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    assert main(["verify", str(tmp_path / "theirs")]) == 0
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "back")]) == 0
    assert "A checkpoint of modernbert" in capsys.readouterr().out
    config = RoFormerLiteConfig(vocab_size=30, hidden_size=16, rotary_value=True, norm_type="rmsnorm")
    RoFormerLiteModel(config).save_pretrained(tmp_path / "odd")
    assert main(["convert", str(tmp_path / "odd"), str(tmp_path / "none"), "--to", "auto"]) == 2
    assert "rotary_value=True (must be False)" in capsys.readouterr().err and not (tmp_path / "none").exists()


def test_sentence_transformers_directory(tmp_path):
    """Pooling, normalisation and prompts go along, there and back."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    lines = ["a quick brown fox", "padding costs nothing", "over the lazy dog"]
    tokenizer = RoFormerLiteTokenizer.train(lines * 3, vocab_size=90, algorithm="wordpiece", show_progress=False)
    tokenizer.save_pretrained(tmp_path / "encoder")
    config = transformers.NomicBertConfig(**{**HF, "vocab_size": len(tokenizer)})
    noisy(transformers.NomicBertModel(config)).save_pretrained(tmp_path / "encoder")
    transformer = Transformer(str(tmp_path / "encoder"))
    modules = [transformer, Pooling(HF["hidden_size"], pooling_mode="cls"), Normalize()]
    theirs = SentenceTransformer(modules=modules, prompts={"query": "query: "}, default_prompt_name="query")
    theirs.save(str(tmp_path / "theirs"))
    convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    ours = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert type(ours[0].auto_model) is RoFormerLiteModel
    expected = theirs.encode(lines, convert_to_tensor=True)
    torch.testing.assert_close(ours.encode(lines, convert_to_tensor=True), expected, rtol=0, atol=1e-5)
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "auto"]) == 0
    code = (
        "import sys; from sentence_transformers import SentenceTransformer; import json;"
        "model = SentenceTransformer(sys.argv[1], device='cpu'); assert 'hf_roformer_lite' not in sys.modules;"
        "print(json.dumps(model.encode(json.loads(sys.argv[2])).tolist()))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "back"), json.dumps(lines)]
    printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    torch.testing.assert_close(torch.tensor(json.loads(printed)), expected.cpu(), rtol=0, atol=1e-5)
    (tmp_path / "theirs" / "modules.json").write_text('[{"path": "../x", "type": "sentence_transformers.models.P"}]')
    with pytest.raises(ConversionError, match=r"path='\.\./x' must be a folder beside it"):
        convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "outside")
    assert not (tmp_path / "outside").exists()


def test_an_export_says_what_is_in_the_way():
    _, weights = source_weights("bart", CASES["bart"][1])
    model = convert("bart", weights, CASES["bart"][1])
    model.config.decoder.norm_placement = "pre"
    with pytest.raises(
        ConversionError, match=r"bart has no equivalent of decoder.norm_placement='pre' \(must be 'post'\)"
    ):
        export("bart", model)
    assert PAIR["decoder_layers"] == model.config.decoder.num_hidden_layers
