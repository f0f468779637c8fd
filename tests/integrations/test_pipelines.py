"""Pipelines from text to text, which transformers 5 no longer has, return the texts that the model
was trained to produce."""

import pytest
import torch
from conftest import UNIGRAM, build, stack_config
from transformers import GenerationConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset

import hf_roformer_lite as rl

PAIRS = [
    ("2 dogs", "zwei Hunde ."),
    ("3 dogs", "drei Hunde ."),
    ("4 dogs", "vier Hunde ."),
    ("5 dogs", "fünf Hunde ."),
    ("6 dogs", "sechs Hunde ."),
    ("one dog and a rather long tail of words", "ein Hund ."),
]
SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


@pytest.fixture(scope="module")
def translator(tmp_path_factory) -> str:
    """The folder of a saved encoder–decoder that knows six sentences by heart.

    Its tokenizer is of the kind Unigram, whose decoding leaves all spaces as they are."""
    torch.manual_seed(0)
    tokenizer = rl.RoFormerLiteTokenizer.from_pretrained(UNIGRAM)
    fields = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "initializer_range": 0.1,
    }
    config = rl.RoFormerLiteSeq2SeqConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), hidden_dropout=0.0, **fields
    )
    model = rl.RoFormerLiteForConditionalGeneration(config)
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    targets = tokenizer(text_target=TARGETS, padding=True, return_tensors="pt")
    batch["labels"] = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=4e-3)
    for _ in range(200):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    directory = tmp_path_factory.mktemp("translator")
    for part in (model, tokenizer):
        part.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("name", ["text2text-generation", "translation", "summarization"])
def test_text_to_text_by_name_and_by_object(name, translator):
    keys = {
        "text2text-generation": "generated_text",
        "translation": "translation_text",
        "summarization": "summary_text",
    }
    key = keys[name]
    pipe = pipeline(name, translator)
    assert pipe(SOURCES[0]) == [{key: TARGETS[0]}]
    by_object = pipeline(name, model=pipe.model, tokenizer=pipe.tokenizer, batch_size=4)
    assert by_object(SOURCES) == [{key: target} for target in TARGETS]
    assert list(by_object(source for source in SOURCES)) == [[{key: target}] for target in TARGETS]
    dataset = KeyDataset([{"text": source} for source in SOURCES], "text")
    assert list(by_object(dataset)) == [[{key: target}] for target in TARGETS]
    assert by_object(SOURCES[:1]) == [{key: TARGETS[0]}] and by_object([]) == []


def test_options_of_generation(translator):
    pipe = pipeline("translation", translator, num_beams=3)
    model = pipe.model
    tokenizer = pipe.tokenizer
    found = pipe(
        SOURCES[:2],
        num_return_sequences=3,
        max_new_tokens=4,
        batch_size=2,
        return_dict_in_generate=True,
    )
    inputs = tokenizer(SOURCES[:2], padding=True, return_tensors="pt")
    direct = model.generate(**inputs, num_beams=3, num_return_sequences=3, max_new_tokens=4)
    texts = tokenizer.batch_decode(direct, skip_special_tokens=True)
    found_texts = [entry["translation_text"] for entries in found for entry in entries]
    assert found_texts == texts and len(set(texts)) > 2
    cleaned = pipe(SOURCES[0], clean_up_tokenization_spaces=True)
    assert cleaned == [{"translation_text": "zwei Hunde."}]
    (entry,) = pipe(SOURCES[0], return_tensors=True)
    assert tokenizer.decode(entry["translation_token_ids"], skip_special_tokens=True) == TARGETS[0]
    assert pipe(SOURCES[0], stop_strings=["Hunde"]) == [{"translation_text": "zwei Hunde"}]
    long = " ".join(["dogs"] * 20)
    tokenizer.model_max_length = 10
    (entry,) = pipe(long, truncation=True, return_tensors=True)
    ids = tokenizer(long, truncation=True, return_tensors="pt").input_ids
    direct = model.generate(ids, num_beams=3)[0]
    assert ids.shape == (1, 10) and entry["translation_token_ids"].equal(direct)


def test_length_when_nobody_says_how_long(translator):
    """The limit is 256 new tokens, as in the pipelines of transformers, and not the 20 tokens of a
    call of `generate` without options."""
    pipe = pipeline("translation", translator)
    pipe.model.generation_config.eos_token_id = None
    (entry,) = pipe(SOURCES[0], return_tensors=True)
    assert len(entry["translation_token_ids"]) == 1 + 256
    pipe.model.generation_config.max_length = 12
    (entry,) = pipe(SOURCES[0], return_tensors=True)
    assert len(entry["translation_token_ids"]) == 12
    beams = GenerationConfig(num_beams=2, decoder_start_token_id=2, pad_token_id=0)
    (entry,) = pipe(SOURCES[0], return_tensors=True, generation_config=beams)
    assert len(entry["translation_token_ids"]) == 1 + 256


def test_saved_pipeline_needs_no_trust(translator, tmp_path):
    pipeline("translation", translator).save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    assert pipeline("translation", str(tmp_path))(SOURCES[0]) == [{"translation_text": TARGETS[0]}]


def test_what_these_tasks_refuse(translator):
    pipe = pipeline("translation", translator)
    with pytest.raises(TypeError, match="3 is a int; the input of 'translation' must be text"):
        pipe(3)
    causal = build(rl.RoFormerLiteForCausalLM, stack_config())
    with pytest.raises(
        ValueError, match="model_type='roformer_lite': transformers 5 has no task 'translation'"
    ):
        pipeline("translation", model=causal, tokenizer=pipe.tokenizer)
