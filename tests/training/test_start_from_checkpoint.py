"""Training from a checkpoint of transformers gives the losses and the files of stock training."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from conftest import assert_close
from program import (
    answered,
    card_of,
    change_fields,
    config_of,
    evaluated,
    in_new_process,
    read_json,
    read_rows,
    refused,
    train,
    write_rows,
)
from safetensors.torch import load_file
from saved_models import save_bert, save_model
from toy_training import arguments, logged
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from hf_roformer_lite import RoFormerLiteTokenizer
from roformer_lite.answers import recipe_of
from roformer_lite.errors import InputError
from roformer_lite.options.run import parse_run
from roformer_lite.recipes import RECIPES
from roformer_lite.saved.saved_model import load_with_new_head

WORDS = (
    "a fine film far too long dull from end to this was the best worst and of all with cast plot"
).split()
VOCABULARY = {"vocab_size": 5 + len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = ["bad", "fair", "good"]
STEPS = 20
COMMON = "--use_cpu --training_arguments save_strategy=no"
SHORT = f"{COMMON} --max_steps 1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with labelled rows of uneven lengths, other data, and a model `bert`."""
    folder = tmp_path_factory.mktemp("start")
    draw = random.Random(0)
    rows = []
    for row in range(80):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))
        rows.append({"text": text, "label": LABELS[row % 3]})
    write_rows(folder / "rows.jsonl", rows)
    tags = {"tokens": ["Anna", "in", "Rome"], "tags": ["B-PER", "O", "B-LOC"]}
    write_rows(folder / "tags.jsonl", [tags] * 20)
    write_rows(folder / "text.jsonl", [{"text": "a fine film from end to end"}] * 40)
    pair = {"anchor": "a fine film", "positive": "the best film"}
    write_rows(folder / "pairs.jsonl", [pair] * 16)
    bert(folder / "bert", transformers.BertModel)
    return folder


def bert(directory: Path, model_class: type[PreTrainedModel], **fields: Any) -> Path:
    labels = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: i for i, label in enumerate(LABELS)},
    }
    fields = {"num_hidden_layers": 2, **labels, **fields}
    return save_bert(directory, WORDS, model_class, **NO_DROPOUT, **fields)


def save(model: PreTrainedModel, directory: Path) -> Path:
    """Save a model of another family with the tokenizer of a BERT."""
    save_bert(directory, WORDS)
    model.save_pretrained(directory)
    return directory


def stock_losses(directory: Path, rows: Path, tmp_path: Path, **options) -> list[float]:
    """Return the losses of the stock Trainer, in a script as users of transformers write it."""
    transformers.set_seed(42)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.BertForSequenceClassification.from_pretrained(directory, num_labels=3)
    data = [
        {**tokenizer(row["text"]), "labels": LABELS.index(row["label"])} for row in read_rows(rows)
    ]
    trainer = transformers.Trainer(
        model,
        arguments(tmp_path / "stock", **options),
        train_dataset=data,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    return logged(trainer)


def test_same_losses_as_the_stock_class(folder, tmp_path, capsys):
    """Both make twenty steps without dropout, on the same batches and from the same head."""
    directory = bert(folder / "classifier", transformers.BertForSequenceClassification)
    options = {
        "learning_rate": 1e-3,
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "seed": 42,
    }
    rows = folder / "rows.jsonl"
    expected = stock_losses(directory, rows, tmp_path, **options)
    command = f"classify {COMMON} --keep_checkpoints --training_arguments logging_steps=1"
    train(command, rows, tmp_path / "ours", model_name_or_path=directory, **options)
    (state,) = (tmp_path / "ours.training").glob("checkpoint-*/trainer_state.json")
    log = read_json(state)["log_history"]
    ours = [entry["loss"] for entry in log if "loss" in entry]
    assert "new head" not in capsys.readouterr().err
    assert config_of(tmp_path / "ours")["architectures"] == ["BertForSequenceClassification"]
    assert len(ours) == len(expected) == STEPS
    # The losses change enough to show that the model learns.
    assert max(ours) - min(ours) > 0.1
    assert_close(ours, expected)


CLASSES = {
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "embed": "BertModel",
}
FILES = {
    "classify": "rows.jsonl",
    "tag": "tags.jsonl",
    "embed": "pairs.jsonl",
    "causal": "text.jsonl",
}


@pytest.fixture(scope="module")
def stock(folder) -> dict[str, Path]:
    """Models that were trained from `bert` or from a decoder, for four tasks."""
    config = transformers.LlamaConfig(**SIZES, **VOCABULARY)
    llama = save(transformers.LlamaForCausalLM(config), folder / "llama")
    for task, file in FILES.items():
        start = folder / "bert"
        command = f"{task} {SHORT}"
        if task == "causal":
            start = llama
            command += " --line_by_line --block_size 16"
        train(command, folder / file, folder / f"of-{task}", model_name_or_path=start)
    return {task: folder / f"of-{task}" for task in FILES}


def test_what_comes_out_is_a_stock_model(folder, stock):
    """The class, the files, the config and the tokenizer are the ones of transformers."""
    for task, name in {**CLASSES, "causal": "LlamaForCausalLM"}.items():
        fields = config_of(stock[task])
        assert fields["architectures"] == [name] and "auto_map" not in fields
        assert not list(stock[task].glob("*.py"))
        assert "import hf_roformer_lite" not in card_of(stock[task])
        source, ours = (
            transformers.AutoTokenizer.from_pretrained(place)
            for place in (folder / "bert", stock[task])
        )
        assert source("a fine film") == ours("a fine film") and type(source) is type(ours)
    assert len(answered(stock["tag"], WORDS)) == len(WORDS)


@pytest.mark.slow
def test_a_process_without_this_package_gives_the_same_answers(stock):
    code = """
import sys
sys.modules["hf_roformer_lite"] = None
import json
from sentence_transformers import SentenceTransformer
from transformers import pipeline
classify, embed, *texts = sys.argv[1:]
labels = [answer["label"] for answer in pipeline("text-classification", classify)(texts)]
print(json.dumps([labels, SentenceTransformer(embed).encode(texts).tolist()]))
"""
    texts = ["a fine film", "far too long and dull from end to end", "best"]
    classified, embedded = (answered(stock[task], texts) for task in ("classify", "embed"))
    done = in_new_process("-c", code, stock["classify"], stock["embed"], *texts)
    labels, vectors = json.loads(done.stdout.splitlines()[-1])
    assert [line.split("\t")[0] for line in classified] == labels
    ours = [json.loads(line) for line in embedded]
    assert_close(ours, vectors)


def test_default_lengths_are_what_the_model_has_positions_for(folder, tmp_path):
    start = bert(tmp_path / "short", transformers.BertModel, max_position_embeddings=9)
    rows = folder / "rows.jsonl"
    results = train(f"classify {SHORT}", rows, tmp_path / "out", model_name_or_path=start)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert results["settings"]["max_length"] == 9 == tokenizer.model_max_length
    files = {"model_name_or_path": start, "train_file": rows, "output_dir": tmp_path / "no"}
    message = refused("train classify --max_length 10", **files)
    assert "--max_length 10 is more than the model has positions for" in message


def test_a_head_for_a_number(tmp_path, capsys):
    """It is continued for numbers, and replaced for classes. Transformers calls the number LABEL_0.

    A reranker has such a head, too."""
    labels = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    model_class = transformers.BertForSequenceClassification
    start = bert(tmp_path / "number", model_class, **labels, problem_type="regression")
    rows = [
        {"text": f"{word} film", "label": n / 10, "class": "ab"[n % 2]}
        for n, word in enumerate(WORDS)
    ]
    data = write_rows(tmp_path / "a.jsonl", rows)
    command = f"classify --problem_type regression --learning_rate 0 {SHORT}"
    train(command, data, tmp_path / "m", model_name_or_path=start)
    assert "new head" not in capsys.readouterr().err
    old, new = (model_class.from_pretrained(path) for path in (start, tmp_path / "m"))
    assert_close(new.classifier.weight, old.classifier.weight)
    command = f"classify --label_column class {SHORT}"
    train(command, data, tmp_path / "classes", model_name_or_path=start)
    assert "the training starts with a new head" in capsys.readouterr().err
    saved = transformers.AutoConfig.from_pretrained(tmp_path / "classes")
    assert saved.problem_type == "single_label_classification" and saved.num_labels == 2


@pytest.mark.parametrize(("kind", "task"), [("number", "tag"), ("labels", "rerank")])
def test_the_problem_type_of_a_classifier_ends_with_its_head(kind, task, folder, tmp_path):
    data = folder / ("tags.jsonl" if task == "tag" else "pairs.jsonl")
    start = save_model(kind, tmp_path / "start")
    train(f"{task} {SHORT}", data, tmp_path / "m", model_name_or_path=start)
    assert "problem_type" not in config_of(tmp_path / "m")


def test_a_decoder_with_the_tokenizer_of_an_encoder(folder, tmp_path):
    """Its configuration names no padding, and a token for the end that no text ends with. The
    tokenizer need not name padding either."""
    config = transformers.LlamaConfig(**SIZES, vocab_size=VOCABULARY["vocab_size"], num_labels=1)
    start = save(transformers.LlamaForSequenceClassification(config), tmp_path / "reranker")
    pairs = tmp_path / "pairs.jsonl"
    write_rows(pairs, [{"anchor": word, "positive": word} for word in WORDS])
    train(f"rerank {SHORT}", pairs, tmp_path / "m", model_name_or_path=start, test_file=pairs)
    start = save(transformers.LlamaForCausalLM(config), tmp_path / "decoder")
    change_fields(start / "tokenizer_config.json", pad_token=None, eos_token="[SEP]")
    out = tmp_path / "c"
    train(f"causal {SHORT} --block_size 16", folder / "text.jsonl", out, model_name_or_path=start)
    saved = transformers.GenerationConfig.from_pretrained(out)
    assert saved.eos_token_id == 3 != config.eos_token_id


def test_causal_models_see_only_earlier_tokens(folder, tmp_path):
    """An encoder becomes a decoder, and a decoder an encoder."""
    text = folder / "text.jsonl"
    # Like the published BERT, it has a pooler and a second head beside those of its class.
    start = bert(tmp_path / "bert", transformers.BertForPreTraining)
    change_fields(start / "config.json", architectures=["BertForMaskedLM"])
    assert evaluated(start, text)["metrics"]
    for task, is_decoder in (("causal", True), ("mlm", False)):
        out = tmp_path / task
        train(f"{task} {SHORT} --block_size 16", text, out, model_name_or_path=start)
        assert config_of(out)["is_decoder"] is is_decoder
        start = out
    # The loss of this class does not shift labels.
    config = transformers.BartConfig(**VOCABULARY, d_model=32)
    start = save(transformers.BartForCausalLM(config), tmp_path / "bart")
    files = {"train_file": text, "model_name_or_path": start, "output_dir": tmp_path / "no"}
    assert "loss" in refused(f"train causal {SHORT}", **files)


def test_other_families(folder, tmp_path, capsys):
    """An encoder with windows and an encoder-decoder stay what they are, and compute no padding."""
    config = transformers.ModernBertConfig(
        **SIZES,
        **VOCABULARY,
        cls_token_id=2,
        sep_token_id=3,
        local_attention=4,
        auto_map={"AutoConfig": "code.Config"},
    )
    start = save(transformers.ModernBertModel(config), tmp_path / "modernbert")
    rows = folder / "rows.jsonl"
    out = tmp_path / "classes"
    results = train(f"classify {SHORT}", rows, out, model_name_or_path=start)
    assert results["training"]["own_weights"] is False
    assert "padding is computed" not in capsys.readouterr().err
    saved = config_of(out)
    assert saved["model_type"] == "modernbert" and "auto_map" not in saved
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 2, f"{side}_layers": 1, f"{side}_ffn_dim": 48}
    pair = transformers.BartConfig(
        **VOCABULARY,
        **sizes,
        d_model=32,
        max_position_embeddings=64,
    )
    model = transformers.BartForConditionalGeneration(pair)
    model.generation_config.update(num_beams=3, early_stopping=True, max_new_tokens=3)
    # These belong to other targets.
    model.generation_config.update(min_length=30, forced_bos_token_id=7)
    start = save(model, tmp_path / "bart")
    command = f"seq2seq {SHORT} --source_column text --target_column label"
    command += " --max_source_length 32 --max_target_length 16"
    out = tmp_path / "pair"
    train(command, rows, out, model_name_or_path=start)
    assert "padding is computed" not in capsys.readouterr().err
    assert config_of(out)["model_type"] == "bart"
    saved = transformers.GenerationConfig.from_pretrained(out)
    assert (saved.num_beams, saved.early_stopping) == (3, True)
    # The option wins over the limits of the checkpoint.
    assert (saved.max_length, saved.max_new_tokens, saved.min_length) == (17, None, 0)
    assert saved.decoder_start_token_id == saved.forced_bos_token_id == 2
    # The name of this class does not end like those of other encoder-decoders.
    marian = transformers.MarianConfig(**pair.to_dict() | {"pad_token_id": 0})
    start = save(transformers.MarianMTModel(marian), tmp_path / "marian")
    names = ["input_ids", "attention_mask"]
    change_fields(start / "tokenizer_config.json", model_input_names=names)
    out = tmp_path / "translator"
    results = train(command, rows, out, model_name_or_path=start, test_file=rows)
    assert config_of(out)["model_type"] == "marian"
    assert evaluated(out, rows)["metrics"]["test"] == results["metrics"]["test"]
    # Its tables of positions, which are not saved, are not trained.
    model, _ = load_with_new_head(transformers.AutoModelForSeq2SeqLM, start, marian)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained <= load_file(start / "model.safetensors").keys()
    # In training this model starts with the last token of the target, [SEP].
    mbart = transformers.MBartConfig(**pair.to_dict())
    start = save(transformers.MBartForConditionalGeneration(mbart), tmp_path / "mbart")
    out = tmp_path / "languages"
    train(command, rows, out, model_name_or_path=start)
    saved = transformers.GenerationConfig.from_pretrained(out)
    assert saved.decoder_start_token_id == 3


def test_classes_of_transformers_have_their_task(tmp_path):
    """Those of SeamlessM4T translate speech, too."""
    for task, table in (
        ("seq2seq", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("classify", modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
        ("tag", modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
    ):
        for name in table.values():
            if not name.startswith("SeamlessM4T"):
                config = transformers.PreTrainedConfig(architectures=[name])
                assert recipe_of(tmp_path, config, results={}).name == task


@pytest.mark.parametrize(
    ("start", "given", "is_joined"), [("", "", True), ("bert", "", False), ("bert", "true", True)]
)
def test_a_baseline_joins_only_new_models_by_default(folder, start, given, is_joined):
    words = "--dataset_name any --output_dir m"
    if start:
        words += f" --model_name_or_path {folder / start}"
    if given:
        words += f" --join_baseline {given}"
    assert parse_run("classify", words.split()).joins_baseline == is_joined


def test_masks_need_a_token():
    recipe = RECIPES["mlm"](RECIPES["mlm"].options_class(dataset_name="any"))
    tokenizer = RoFormerLiteTokenizer.train(["one two three"] * 9, vocab_size=300)
    assert recipe.adapted_to(tokenizer) == recipe
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="no mask token"):
        recipe.adapted_to(tokenizer)


TEXTS = [" ".join(WORDS[number:]) for number in range(16)]
LINES = [{"text": text} for text in TEXTS]
SCORED = [
    {"sentence1": text, "sentence2": WORDS[number], "score": number * 7 % 16 / 16}
    for number, text in enumerate(TEXTS)
]
DATA = {"mlm": LINES, "causal": LINES, "embed": SCORED, "rerank": SCORED}


@pytest.mark.parametrize("task", DATA)
def test_the_checkpoint_before_training_is_a_baseline(task, tmp_path):
    """It has the metrics that `evaluate` measures, and does not change the training."""
    start = save_model(task, tmp_path / "start")
    data = write_rows(tmp_path / "rows.jsonl", DATA[task])
    # The models of sentences were saved with this length.
    length = "--max_length 48" if task in ("embed", "rerank") else ""
    command = f"{task} {COMMON} {length} --validation_fraction 0 --learning_rate 1e-3"
    options = {"model_name_or_path": start, "test_file": data, "max_steps": 4}
    results = train(command, data, tmp_path / "m", **options)
    without = train(command, data, tmp_path / "w", **options, baselines=False)
    assert without["metrics"] == results["metrics"] and without["baselines"] == {}
    expected = evaluated(start, data)["metrics"]["test"]
    before = results["baselines"]["the checkpoint before training"]["test"]
    assert before == pytest.approx(expected, rel=1e-5)
    assert results["metrics"]["test"] != before
    if "perplexity" in before:
        assert results["metrics"]["test"]["perplexity"] < before["perplexity"]


def test_a_checkpoint_with_a_new_head_is_no_baseline(folder, tmp_path):
    text = folder / "text.jsonl"
    files = {"model_name_or_path": folder / "bert", "test_file": text}
    assert train(f"mlm {SHORT}", text, tmp_path / "m", **files)["baselines"] == {}
