"""Checkpoint directories are read and written without partial output and without executing code.

Tokenizers and prompts go along, and models that cannot be converted are refused with the reason.
"""

import copy
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import transformers
from conftest import assert_close, assert_equal
from conversion_cases import CASES, FILE, source_weights
from huggingface_hub import save_torch_state_dict
from huggingface_hub.errors import LocalEntryNotFoundError
from program import change_fields, config_of, read_json, refused, run, write_json
from safetensors.torch import load_file
from saved_models import save_bert

import hf_roformer_lite as rl
from hf_roformer_lite.conversion import (
    CONVERTERS,
    ConversionError,
    ConvertedModel,
    checkpoint_files,
    convert,
    convert_checkpoint,
    export,
    export_checkpoint,
    open_checkpoint,
    sentence_pooling,
    verify,
)
from hf_roformer_lite.conversion.checkpoints import load_model
from roformer_lite.errors import InputError
from roformer_lite.export.sentence_encoder import check_sentence_modules

CHINESE = "今天天气非常好"
ENTRIES = "[PAD] [UNK] [CLS] [SEP] [MASK] 今 天 气 非 常 好 今天天气 今天 非常 good".split()
VOCABULARY = {entry: index for index, entry in enumerate(ENTRIES)}


def write_checkpoint(folder: Path, config: dict, weights: dict, form: str = "safetensors") -> Path:
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    if form in ("bin", "old-bin"):
        is_new = form == "bin"
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_new)
    else:
        largest = "12KB" if form == "shards" else "5GB"
        save_torch_state_dict(weights, folder, max_shard_size=largest)
        assert (folder / "model.safetensors.index.json").exists() == (form == "shards")
    return folder


def test_directories(tmp_path):
    """Every form of files becomes a directory with the same numbers."""
    config = CASES["roformer"][1]
    _, weights = source_weights("roformer", config)
    # These weights are tied to others, so files need not hold them.
    del weights["cls.predictions.decoder.weight"]
    del weights["cls.predictions.decoder.bias"]
    ids = torch.arange(1, 9)[None]
    for form in "safetensors bin old-bin shards".split():
        source = write_checkpoint(tmp_path / form / "source", config, weights, form)
        model = convert_checkpoint("roformer", source, tmp_path / form / "out")
        assert sorted(os.listdir(tmp_path / form)) == ["out", "source"]
        assert "lm_head.weight" not in load_file(tmp_path / form / "out" / "model.safetensors")
        again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / form / "out")
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_from_pretrained(tmp_path):
    reference, weights = source_weights("llama", CASES["llama"][1])
    reference.half().save_pretrained(tmp_path / "llama")
    model = ConvertedModel.from_pretrained(tmp_path / "llama")
    assert type(model) is rl.RoFormerLiteForCausalLM
    assert model.dtype == torch.float16
    assert not model.training
    model.save_pretrained(tmp_path / "ours")
    with pytest.raises(ConversionError, match="is a RoFormerLite model already"):
        ConvertedModel.from_pretrained(tmp_path / "ours")
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConversionError, match="model_type='gpt2' is no source .*bert, ernie"):
        ConvertedModel.from_pretrained(tmp_path / "llama")


def test_failures_leave_no_output_and_run_no_code(tmp_path):
    config = CASES["bert"][0]
    _, weights = source_weights("bert", config)
    source = write_checkpoint(tmp_path / "source", config, {**weights, "strange": torch.zeros(1)})

    def refused(message):
        with pytest.raises(ConversionError, match=message):
            convert_checkpoint("bert", source, tmp_path / "out")
        assert os.listdir(tmp_path) == ["source"]

    refused("unknown strange")
    content = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(content[: len(content) // 2])
    refused("model.safetensors: cannot be read")
    (source / "model.safetensors").unlink()
    refused("has no weights")
    torch.save(weights, source / "pytorch_model.bin")
    own_class = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}}
    write_json(source / "tokenizer_config.json", own_class)
    (source / "code.py").write_text("raise SystemExit('this code was run')")
    refused("trust_remote_code")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(ConversionError, match="exists already"):
        convert_checkpoint("bert", source, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


@pytest.mark.parametrize("file", ["../other.safetensors", "{folder}/other.safetensors", ".."])
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_of_weights_names_only_files_in_its_directory(file, kind, tmp_path):
    """Other names are refused before the other file is opened, which here holds no weights."""
    model = tmp_path / "model"
    config = rl.RoFormerLiteConfig.from_preset("tiny", vocab_size=30, hidden_size=16)
    rl.RoFormerLiteModel(config).save_pretrained(model)
    (model / "model.safetensors").rename(tmp_path / "other.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"secret")
    names = {"embeddings.norm.weight": file.format(folder=tmp_path)}
    index = model / f"{kind}.index.json"
    write_json(index, {"metadata": {}, "weight_map": names})
    fault = "names .* which is not a file in the same directory"
    for open_it in (open_checkpoint, load_model):
        with pytest.raises(ConversionError, match=fault):
            open_it(model)


def test_command_line(tmp_path, capsys):
    """A checkpoint and its tokenizer go there and back. The command knows its family from its
    configuration."""
    source = save_bert(tmp_path / "theirs", "abcdefghij")
    ours = tmp_path / "ours"
    back = tmp_path / "back"
    run("convert", source, ours)
    assert "RoFormerLiteModel" in capsys.readouterr().out
    assert transformers.AutoTokenizer.from_pretrained(ours)("abc").input_ids[0] == 2
    run("convert", ours, back)
    assert "A checkpoint of bert" in capsys.readouterr().out
    new = tmp_path / "new"
    for files, options, message in (
        ((source, new), "--from brt", "no source 'brt'"),
        ((ours, new), "--to walkthrough", "exported to walkthrough"),
        ((source, new), "--to bert", "is not a RoFormerLite model"),
    ):
        assert message in refused(f"convert {options}", *files)
    assert not new.exists()


def train_tokenizer(text):
    return rl.RoFormerLiteTokenizer.train([text] * 20, vocab_size=300)


def write_source(folder: Path, family: str, model_type: str) -> Path:
    config = {**CASES[family][0], "model_type": model_type, "vocab_size": 300}
    _, weights = source_weights(family, config)
    return write_checkpoint(folder / "source", config, weights)


@pytest.fixture
def roformer(tmp_path) -> Path:
    """A RoFormer with a vocabulary of words."""
    source = write_source(tmp_path, "roformer", "roformer")
    (source / "vocab.txt").write_text("\n".join(ENTRIES))
    return source


def test_tokenizers_are_converted_too(roformer, tmp_path):
    """RoFormer's tokenizer becomes ours, and opens in stock transformers after its export. A
    tokenizer that was trained here opens there, too."""
    convert_checkpoint("roformer", roformer, tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(tokenizer) is rl.RoFormerLiteJiebaTokenizer
    expected = transformers.RoFormerTokenizer(VOCABULARY)(CHINESE).input_ids
    assert tokenizer(CHINESE).input_ids == expected
    export_checkpoint("roformer", tmp_path / "ours", tmp_path / "back")
    trained = train_tokenizer("a few words of text")
    trained.chat_template = {"default": "{{ messages }}", "short": "{{ messages[-1] }}"}
    trained.save_pretrained(tmp_path / "mine")
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "mine" / file).write_bytes((tmp_path / "ours" / file).read_bytes())
    export_checkpoint("roformer", tmp_path / "mine", tmp_path / "theirs")
    words = "a few words"
    for folder, line, ids in (
        ("back", CHINESE, expected),
        ("theirs", words, trained(words).input_ids),
    ):
        stock = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        assert type(stock).__module__.startswith("transformers.")
        assert stock(line).input_ids == ids
    assert stock.chat_template == trained.chat_template


@pytest.mark.parametrize(
    "family, number, make_tokenizer, text, other_family",
    [
        # AutoTokenizer always opens Qwen2's tokenizer for Qwen2 ...
        ("qwen2", 1, train_tokenizer, "cafe\u0301 12345", "llama"),
        ("qwen2", 1, lambda text: rl.RoFormerLiteJiebaTokenizer(VOCABULARY), CHINESE, "llama"),
        # ... and what tokenizer.json says, without Jieba, for ModernBERT.
        ("modernbert", 0, lambda text: rl.RoFormerLiteJiebaTokenizer(VOCABULARY), CHINESE, None),
    ],
)
def test_a_family_that_replaces_the_tokenizer(
    family, number, make_tokenizer, text, other_family, tmp_path
):
    model = convert(family, None, {**CASES[family][number], "vocab_size": 300})
    model.save_pretrained(tmp_path / "ours")
    tokenizer = make_tokenizer(text)
    tokenizer.save_pretrained(tmp_path / "ours")
    with pytest.raises(ConversionError, match=f"as {family}, .* finds other tokens"):
        export_checkpoint(family, tmp_path / "ours", tmp_path / "theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    if other_family is None:
        return
    assert export_checkpoint("auto", tmp_path / "ours", tmp_path / "theirs") == other_family
    stock = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert stock(text).input_ids == tokenizer(text).input_ids


def test_a_tokenizer_of_no_class_does_not_become_roformers(roformer, tmp_path):
    """AutoTokenizer opens RoFormer's own tokenizer, with Jieba, if the files name no class."""
    convert_checkpoint("roformer", roformer, tmp_path / "ours")
    train_tokenizer("a few words").save_pretrained(tmp_path / "ours")
    change_fields(tmp_path / "ours" / "tokenizer_config.json", tokenizer_class=None)
    with pytest.raises(ConversionError, match="finds other tokens"):
        export_checkpoint("roformer", tmp_path / "ours", tmp_path / "back")


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_a_roformer_keeps_the_tokenizer_that_it_declares(file, roformer, tmp_path):
    """Models of characters declare the tokenizer of BERT, which does not read words."""
    fields = config_of(roformer) if file == "config.json" else {}
    write_json(roformer / file, {**fields, "tokenizer_class": "BertTokenizer"})
    convert_checkpoint("auto", roformer, tmp_path / "ours")
    text = f"{CHINESE} good"
    expected = transformers.BertTokenizer(VOCABULARY)(text).input_ids
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer(text).input_ids == expected
    assert tokenizer.convert_ids_to_tokens(expected)[1:3] == ["今", "天"]


def test_a_roformer_v2_keeps_the_tokenizer_that_it_declares(tmp_path):
    source = write_source(tmp_path, "roformer_v2", "roformer")
    trained = train_tokenizer("a few words of text")
    trained.save_pretrained(source)
    change_fields(source / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    convert_checkpoint("auto", source, tmp_path / "ours")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("a few words").input_ids == trained("a few words").input_ids


@pytest.mark.parametrize("tokenizer_class", ["BertweetTokenizer", "PhobertTokenizer"])
def test_codes_of_pairs_are_copied(tokenizer_class, tmp_path):
    source = write_source(tmp_path, "roberta", "roberta")
    (source / "vocab.txt").write_text("hello 9\nfoo 9\nh@@ 9\ne@@ 9\nl@@ 9\no 9\n")
    (source / "bpe.codes").write_text("h e 9\nhe l 8\nhel l 7\nhell o</w> 6\nf o 5\nfo o</w> 4\n")
    write_json(source / "tokenizer_config.json", {"tokenizer_class": tokenizer_class})
    convert_checkpoint("auto", source, tmp_path / "ours")
    export_checkpoint("roberta", tmp_path / "ours", tmp_path / "back")
    for folder in ("source", "ours", "back"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        assert type(tokenizer).__name__ == tokenizer_class
        assert tokenizer("hello foo<mask>").input_ids == [0, 4, 5, tokenizer.mask_token_id, 2]


def test_sentence_transformers_directory(tmp_path):
    """Pooling, normalisation and prompts go along, there and back."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    lines = ["a quick brown fox", "padding costs nothing", "over the lazy dog"]
    encoder = save_bert(tmp_path / "encoder", " ".join(lines).split())
    modules = [Transformer(str(encoder)), Pooling(32, pooling_mode="cls"), Normalize()]
    theirs = SentenceTransformer(
        modules=modules, prompts={"query": "query: "}, default_prompt_name="query"
    )
    theirs.save(str(tmp_path / "theirs"))
    convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    ours = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert type(ours[0].auto_model) is rl.RoFormerLiteModel
    expected = theirs.encode(lines)
    assert_close(ours.encode(lines), expected)
    check_sentence_modules(tmp_path / "ours")
    of_older_versions = (("lasttoken", "last"), ("mean_tokens", "mean"), ("max_tokens", None))
    for way, known in of_older_versions:
        options = {
            "word_embedding_dimension": 24,
            f"pooling_mode_{way}": True,
            "include_prompt": True,
        }
        write_json(tmp_path / "ours" / "1_Pooling" / "config.json", options)
        assert sentence_pooling(tmp_path / "ours") == known
    with pytest.raises(InputError, match="classifier_pooling='cls'"):
        check_sentence_modules(tmp_path / "ours")
    pooling = Path("1_Pooling") / "config.json"
    shutil.copy(tmp_path / "theirs" / pooling, tmp_path / "ours" / pooling)
    export_checkpoint("auto", tmp_path / "ours", tmp_path / "back")
    back = SentenceTransformer(str(tmp_path / "back"), device="cpu")
    assert type(back[0].auto_model) is transformers.BertModel
    assert_close(back.encode(lines), expected)
    outside = '[{"path": "../x", "type": "sentence_transformers.models.P"}]'
    (tmp_path / "theirs" / "modules.json").write_text(outside)
    with pytest.raises(ConversionError, match=r"names '\.\./x', which is not a folder"):
        convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "outside")


def test_names_are_accounted_for():
    config = CASES["bert-like"][0]
    _, weights = source_weights("bert-like", config)
    lacking = {
        name: tensor
        for name, tensor in weights.items()
        if not name.startswith("layers.1.layer_norm_2")
    }
    for given, fields, message in (
        ({**weights, "pooler.weight": torch.zeros(1)}, config, "has unknown pooler.weight"),
        (lacking, config, r"lacks layers.1.layer_norm_2.bias, layers.1.layer_norm_2.weight;"),
        (
            weights,
            {**config, "vocab_size": 51},
            r"embeddings.token_embeddings.weight: .*\(50, 24\).*\(51, 24\)",
        ),
        (weights, {"vocab_size": 50}, "needs the field 'hidden_size'"),
        (weights, {**config, "hidden": 3}, "has no field hidden"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert("bert-like", given, fields)
    with pytest.raises(ConversionError, match="no source 'gpt'"):
        convert("gpt", None, {})


def test_older_names_and_fields_read_from_weights():
    """`verify` reads the same names and fields as `convert`."""
    replaced = {
        "LayerNorm.weight": "LayerNorm.gamma",
        "LayerNorm.bias": "LayerNorm.beta",
        "up_proj": "fc1",
        "down_proj": "fc2",
        "parametric_relu": "parametric_relu_1",
    }
    encoder = {name: value for name, value in CASES["torch-encoder"][1].items() if name != "norm"}
    for name, case, config in (
        ("bert", CASES["bert"][0], CASES["bert"][0]),
        ("deeplotx", CASES["deeplotx"][0], CASES["deeplotx"][0]),
        ("torch-encoder", CASES["torch-encoder"][1], {**encoder, "batch_first": True}),
        ("walkthrough", CASES["walkthrough"][0], {}),
    ):
        _, weights = source_weights(name, case)
        older = {}
        for key, tensor in weights.items():
            for new, old in replaced.items():
                key = key.replace(new, old)
            older[key] = tensor
        assert all(difference.is_within for difference in verify(name, older, config)), name
    _, weights = source_weights("bert", CASES["bert"][0])
    twice = {**weights, "embeddings.LayerNorm.gamma": weights["embeddings.LayerNorm.weight"]}
    message = "embeddings.LayerNorm.weight under an older and a newer name"
    with pytest.raises(ConversionError, match=message):
        convert("bert", twice, CASES["bert"][0])


@pytest.mark.parametrize(("name", "number", "copy", "original"), FILE["tied_tensors"])
def test_tied_tensors_that_differ(name, number, copy, original):
    """transformers does not tie them, so the model computes with both."""
    config = {**CASES[name][number], "tie_word_embeddings": True}
    _, weights = source_weights(name, config)
    convert(name, weights, config)
    with pytest.raises(ConversionError, match=f"{copy} differs from {original}"):
        convert(name, {**weights, copy: weights[copy] + 1}, config)


@pytest.mark.parametrize("case", FILE["refused"], ids=lambda case: case["message"])
def test_what_cannot_be_converted(case):
    name = case["source"]
    # Versions of transformers before 5.21 do not have UltraBERT.
    if name in CONVERTERS:
        with pytest.raises(ConversionError, match=case["message"]):
            convert(name, None, {**CASES[name][0], **case["fields"]})


def test_versions_of_roformer(tmp_path):
    """The configuration and the weights show which version a model has, so that it is never loaded
    as another one without an error."""
    config = CASES["roformer"][2]
    _, weights = source_weights("roformer", config)
    without_biases = {name: tensor for name, tensor in weights.items() if not name.endswith("bias")}
    with pytest.raises(ConversionError, match="RoFormerV2"):
        convert("roformer", without_biases, config)
    with_pooler = {**weights, "roformer.pooler.dense.weight": torch.zeros(24, 24)}
    with pytest.raises(ConversionError, match="RoFormer-Sim .* sees the whole source"):
        convert("roformer", with_pooler, config)
    for name, norm in {"roformer": "layernorm", "roformer_v2": "rmsnorm"}.items():
        reference, _ = source_weights(name, CASES[name][1])
        reference.save_pretrained(tmp_path / name)
        model = ConvertedModel.from_pretrained(tmp_path / name)
        assert model.config.norm_type == norm
    with torch.no_grad():
        model.model.layers[0].mlp_norm.weight[3] = 1.1
    with pytest.raises(ConversionError, match="must be 1 in every entry"):
        export("roformer_v2", model)


def test_the_source_keeps_its_weights():
    """A change of a converted model, or of an exported state dict, does not change the weights from
    which it was made."""
    config = CASES["roformer"][1]
    stock, weights = source_weights("roformer", config)
    before = copy.deepcopy(weights)
    model = convert("roformer", stock.state_dict(), config)
    ours = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for tensor in export("roformer", model)[0].values():
            tensor += 1
        assert_equal(model.state_dict(), ours)
        for parameter in model.parameters():
            parameter += 1
    assert_equal(stock.state_dict(), before)


def test_the_activation_of_a_reranker_is_kept(tmp_path):
    save_bert(tmp_path / "theirs", "ab", transformers.BertForSequenceClassification, num_labels=1)
    fields = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    change_fields(tmp_path / "theirs" / "config.json", **fields)
    convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    export_checkpoint("auto", tmp_path / "ours", tmp_path / "back")
    for name in ("ours", "back"):
        assert fields.items() <= config_of(tmp_path / name).items()


def test_generation_settings_that_contradict_each_other_are_kept(tmp_path):
    """Published models have them, and transformers warns of them only."""
    config = transformers.LlamaConfig(**CASES["llama"][1])
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "theirs")
    settings = {"temperature": 0.9, "top_p": 0.6, "eos_token_id": 2}
    write_json(tmp_path / "theirs" / "generation_config.json", settings)
    try:
        stock = transformers.GenerationConfig.from_pretrained(tmp_path / "theirs")
        stock.save_pretrained(tmp_path / "stock")
    except ValueError:
        # The oldest supported version of transformers does not save them either.
        with pytest.raises(ValueError, match="temperature"):
            convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
        return
    convert_checkpoint("auto", tmp_path / "theirs", tmp_path / "ours")
    export_checkpoint("auto", tmp_path / "ours", tmp_path / "back")
    for name in ("ours", "back"):
        written = read_json(tmp_path / name / "generation_config.json")
        assert settings.items() <= written.items()


def test_a_lost_connection_is_not_a_missing_file(monkeypatch):
    no_connection = Mock(side_effect=LocalEntryNotFoundError("check your connection"))
    monkeypatch.setattr(checkpoint_files, "snapshot_download", no_connection)
    with pytest.raises(ConversionError, match="someone/model.*check your connection"):
        sentence_pooling("someone/model")


def test_each_source_is_tested():
    assert CASES.keys() == CONVERTERS.keys()
