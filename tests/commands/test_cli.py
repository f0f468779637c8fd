"""The commands train, predict and evaluate with files and labels of special kinds. Models of every
task are compared in test_one_way_to_answer.py."""

from program import (
    TINY,
    answered,
    config_of,
    evaluated,
    train,
    write_rows,
)
from toy_training import date_lines
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_roformer_lite import RoFormerLiteTokenizer

LEARNING = f"{TINY} --vocab_size 400 --learning_rate 3e-3"
ENGLISH = [
    "the cat sees a red house",
    "a dog likes the old tree",
    "one bird has two small wings",
    "my house is green",
]


def test_seq2seq(tmp_path):
    """A model brings dates into one form.

    It is trained with averaged weights, label smoothing and a budget of tokens for a batch.
    """
    header, *lines = date_lines()
    files = {}
    for split, part in (("train", lines[:200]), ("test", lines[200:])):
        files[split] = tmp_path / f"{split}.tsv"
        files[split].write_text("".join([header, *part]), "utf-8")
    options = (
        f"seq2seq {LEARNING} --max_tokens_per_batch 800 --ema_decay 0.9 --max_target_length 16 "
        "--bleu_tokenizer char --num_train_epochs 3 "
        "--training_arguments label_smoothing_factor=0.1 generation_num_beams=2"
    )
    trained = tmp_path / "m"
    tests = {"validation_file": files["test"], "test_file": files["test"]}
    results = train(options, files["train"], trained, **tests)
    assert results["rows"] == {"train": 200, "validation": 100, "test": 100}
    assert set(results["metrics"]["test"]) == {"bleu", "chrf", "exact_match"}
    # Both splits are read from the same files.
    assert results["metrics"]["test"] == results["metrics"]["validation"]
    assert results["training"]["arguments"]["ema_decay"] == 0.9
    table = evaluated(trained, files["test"])["predictions"]
    assert [row["source"] for row in table] == [line.partition("\t")[0] for line in lines[200:]]
    exact = [row["prediction"] == row["target"] for row in table]
    assert sum(exact) / len(exact) == results["metrics"]["test"]["exact_match"]
    model = AutoModelForSeq2SeqLM.from_pretrained(trained).eval()
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 17)
    assert model.config.use_cache
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert tokenizer.model_max_length == 128
    texts = ["four", "", "March 5th, 2024", "   ", "二〇二四年三月五日"]
    answers = answered(trained, texts, batch_size=2)
    assert answers[1] == answers[3] == ""
    generated = model.generate(**tokenizer(texts[2], return_tensors="pt"))[0]
    assert tokenizer.decode(generated, skip_special_tokens=True).strip() == answers[2]


def test_classify(tmp_path):
    rows = [
        {"text": text, "animal": "yes" if i < 3 else "no, a house"}
        for i, text in enumerate(ENGLISH)
    ]
    # Rows with the same text would all be held out together.
    numbered = [{**row, "text": f"{row['text']} {n}"} for n in range(25) for row in rows]
    data = write_rows(tmp_path / "a.jsonl", numbered)
    test = write_rows(tmp_path / "b.jsonl", rows)
    options = "--label_column animal --max_length 24 --num_train_epochs 8"
    model = tmp_path / "m"
    results = train(f"classify {LEARNING} {options}", data, model, test_file=test)
    assert results["metrics"]["test"]["accuracy"] == 1.0
    table = evaluated(model, test)["predictions"]
    assert [row["origin"] for row in table] == [f"{test}:{line}" for line in range(1, 5)]
    assert [row["text"] for row in table] == ENGLISH
    assert [row["prediction"] for row in table] == [row["animal"] for row in rows]
    assert config_of(model)["label2id"] == {"no, a house": 0, "yes": 1}


def test_classify_numbers_of_pairs(tmp_path):
    data = tmp_path / "a.tsv"
    lines = [f"{a}\t{b}\t{5.0 * (a == b)}\n" for a in ENGLISH for b in ENGLISH]
    data.write_text("".join(lines) * 3)
    names = ["a", "b", "score"]
    options = "--text_column a --text_pair_column b --label_column score"
    options += " --problem_type regression"
    model = tmp_path / "m"
    results = train(
        f"classify {LEARNING} {options}", data, model, test_file=data, column_names=names
    )
    metrics = results["metrics"]["test"]
    assert set(metrics) == {"pearson", "spearman", "mse"}
    assert float(answered(model, ["a\tb"])[0]) < 6
    found = evaluated(model, data, column_names=names)
    assert found["metrics"]["test"] == metrics
    assert found["labels"] == {}


def test_tag(tmp_path):
    sentences = [
        ("Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n"),
        ("Rome B-LOC\nhas O\nBob B-PER\n"),
    ]
    data = tmp_path / "a.iob2"
    data.write_text("\n".join(sentences * 40))
    model = tmp_path / "m"
    tokenizer = RoFormerLiteTokenizer.train(sentences, algorithm="wordpiece")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    options = TINY.replace("--vocab_size 300", f"--tokenizer {tmp_path / 'tokenizer'}")
    command = f"tag {options} --learning_rate 3e-3 --num_train_epochs 20"
    results = train(command, data, model, test_file=data)
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "words"
    sentence = "Anna lives in New York"
    (answer,) = answered(model, [sentence])
    assert answer == "Anna/B-PER lives/O in/O New/B-LOC York/I-LOC"
    # The pipeline of transformers guesses from spaces where words begin. With other tokenizers than
    # wordpiece, it guesses wrongly.
    tagger = pipeline("token-classification", str(model), aggregation_strategy="first")
    (entities,) = tagger([sentence.split()], is_split_into_words=True)
    found = [(one["entity_group"], sentence[one["start"] : one["end"]]) for one in entities]
    assert found == [("PER", "Anna"), ("LOC", "New York")]


def test_tag_chinese_by_the_character(tmp_path):
    rows = [
        {"tokens": ["张三", "在", "上海"], "tags": ["B-PER", "O", "B-LOC"]},
        {"tokens": ["北京", "有", "李四\x7f"], "tags": ["B-LOC", "O", "B-PER"]},
    ]
    data = write_rows(tmp_path / "a.jsonl", rows * 40)
    # The vocabulary has room for whole words. The pipeline on the card would take a blank for a
    # word if the blank were a token of its own.
    options = "--num_train_epochs 20"
    results = train(f"tag {LEARNING} {options}", data, tmp_path / "m", test_file=data)
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "characters"
    answers = ["张/B-PER 三/I-PER 在/O 上/B-LOC 海/I-LOC"]
    assert answered(tmp_path / "m", ["张三在上海"]) == answers
