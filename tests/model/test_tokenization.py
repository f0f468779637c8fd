"""Tests of RoFormerLiteTokenizer: lossless texts, labels, words, offsets, storage and training."""

import copy
import pickle
import random
import shutil
from pathlib import Path

import pytest
from conftest import data_beside
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from hf_roformer_lite.model.tokenization_roformer_lite import ALGORITHMS, RoFormerLiteTokenizer

ENGLISH = [
    "The quick brown fox doesn't jump over the lazy dog.",
    "Our teacher, Müller, comes to school by car at 7:45.",
]
CHINESE = [
    "我们老师今天开车来学校，我们都很高兴。",
    "那个时候我还没有结婚；他在北京用iPhone手机。",
    "二〇二四年三月五日",
]
CORPUS = (ENGLISH + CHINESE) * 6
UNIGRAM = Path(__file__).parent / "data" / "version_0_1" / "tokenizer-unigram"
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture(scope="module")
def trained():
    """One tokenizer per algorithm, trained on `CORPUS`."""
    options = {"vocab_size": 700, "show_progress": False}
    return {
        name: RoFormerLiteTokenizer.train(CORPUS, algorithm=name, **options) for name in ALGORITHMS
    }


TRICKY = [
    *"  \t\n\r\v\f\x00\x85\u00a0\u2028\u3000\u200d\ufe0f\u0301▁Ġ<0x41>[]é我龘ー。aA9'’t\U0001f468"
]


def random_texts(count: int, seed: int, tricky: list[str] = TRICKY) -> list[str]:
    """Make strings of any characters but surrogates, and of pieces that confuse pre-tokenizers."""
    generator = random.Random(seed)
    planes = [
        (0, 0x7F),
        (0x80, 0x7FF),
        (0x800, 0xD7FF),
        (0x4E00, 0x4FFF),
        (0xE000, 0xFFFF),
        (0x10000, 0x10FFFF),
    ]
    texts = []
    for index in range(count):
        length = generator.randrange(40)
        if index % 2:
            pieces = [generator.choice(tricky) for _ in range(length)]
        else:
            pieces = [chr(generator.randint(*generator.choice(planes))) for _ in range(length)]
        texts.append("".join(pieces))
    return texts


def test_any_text_comes_back_exactly(trained):
    tokenizer = trained["bpe"]
    texts = ["", "👨‍👩‍👧 ❤️", "don’t DON'T", *ENGLISH, *CHINESE, *random_texts(4000, seed=1)]
    encoded = tokenizer(texts)["input_ids"]
    assert tokenizer.batch_decode(encoded, skip_special_tokens=True) == texts
    assert all(tokenizer.unk_token_id not in ids for ids in encoded)
    # A rare character is three tokens of one byte, and two of them do not make a character.
    ids = tokenizer("龘", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert "龘" not in tokenizer.decode(ids[:2])
    assert tokenizer.decode(ids) == "龘"
    text = "a[SEP]b [MASK]<0x41>"
    assert tokenizer(text)["input_ids"].count(tokenizer.sep_token_id) == 2
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    assert set(ids[1:-1]).isdisjoint(tokenizer.all_special_ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_lossless_after_almost_nothing_to_learn_from():
    for corpus in (["ab"], ["\x00"], ["\x00a\uffffb" * 9]):
        poor = RoFormerLiteTokenizer.train(corpus)
        encoded = poor([*corpus, *CHINESE])["input_ids"]
        assert poor.batch_decode(encoded, skip_special_tokens=True) == corpus + CHINESE


@every_algorithm
def test_labels_are_what_is_to_be_predicted(trained, algorithm):
    tokenizer = trained[algorithm]
    source = ENGLISH[0]
    target = CHINESE[0]
    ids = tokenizer(target, add_special_tokens=False)["input_ids"]
    both = tokenizer(source, text_target=target)
    assert both["labels"] == [*ids, 3]
    assert both["input_ids"] == tokenizer(source)["input_ids"]
    alone = tokenizer(text_target=[target, source], padding=True, return_tensors="pt")
    assert alone["input_ids"][0][alone["attention_mask"][0].bool()].tolist() == [*ids, 3]
    short = tokenizer(
        source, text_target=target, max_length=6, max_target_length=4, truncation=True
    )
    assert (len(short["input_ids"]), short["labels"]) == (6, [*ids[:3], 3])
    with pytest.raises(TypeError, match="must be"):
        tokenizer("fine", text_target="a lone surrogate \ud800")
    assert tokenizer(target)["input_ids"] == [2, *ids, 3]


@every_algorithm
def test_storage(trained, algorithm, tmp_path):
    tokenizer = trained[algorithm]
    texts = [*ENGLISH, *CHINESE, *random_texts(200, seed=2)]
    ids = tokenizer(texts)["input_ids"]
    tokenizer.save_pretrained(tmp_path / "saved")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "saved" / "tokenizer.json", tmp_path / "bare")
    copies = {
        "reloaded": RoFormerLiteTokenizer.from_pretrained(tmp_path / "saved"),
        "tokenizer.json alone": RoFormerLiteTokenizer.from_pretrained(tmp_path / "bare"),
        "unpickled": pickle.loads(pickle.dumps(tokenizer)),
    }
    for how, other in copies.items():
        assert other(texts)["input_ids"] == ids and other.model_max_length == 512, how
        assert other("我", text_target="the dog") == tokenizer("我", text_target="the dog"), how
        assert other.special_tokens_map == tokenizer.special_tokens_map, how
    stock = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    assert stock(texts)["input_ids"] == ids
    assert stock.batch_decode(ids) == tokenizer.batch_decode(ids)


@every_algorithm
def test_train_new_from_iterator(trained, algorithm, tmp_path):
    trained[algorithm].save_pretrained(tmp_path)
    tokenizer = RoFormerLiteTokenizer.from_pretrained(tmp_path, model_max_length=77)
    batches = [["una frase nueva, " * 3, "otra frase más"], ["一句新的话"]] * 3
    new = tokenizer.train_new_from_iterator(
        iter(batches),
        400,
        show_progress=False,
        new_special_tokens=["<lang>"],
        special_tokens_map={"[CLS]": "<s>", "[SEP]": "</s>"},
    )
    assert type(new) is RoFormerLiteTokenizer and new.model_max_length == 77
    assert len(new) == new.vocab_size <= 400
    first_tokens = "[PAD] [UNK] <s> </s> [MASK] <lang>".split()
    assert new.convert_ids_to_tokens(range(6)) == first_tokens
    assert (new.cls_token, new.bos_token, new.eos_token) == ("<s>", "<s>", "</s>")
    ids = new("<lang>una frase", text_target="otra")
    assert ids["input_ids"][0] == 2 and ids["input_ids"][1] == 5 and ids["labels"][-1] == 3
    if algorithm == "bpe":
        texts = random_texts(200, seed=3)
        assert new.batch_decode(new(texts)["input_ids"], skip_special_tokens=True) == texts
    new.save_pretrained(tmp_path / "new")
    again = RoFormerLiteTokenizer.from_pretrained(tmp_path / "new")
    assert again.get_vocab() == new.get_vocab() and again.cls_token_id == 2


def test_unigram_cannot_be_trained_again():
    """Version 0.1 could train Unigram tokenizers, too."""
    with pytest.raises(ValueError, match="algorithm='bpe'"):
        RoFormerLiteTokenizer.from_pretrained(UNIGRAM).train_new_from_iterator(iter(CORPUS), 400)


def test_pieces_respect_scripts_digits_and_words(trained):
    tokenizer = trained["bpe"]
    expected = [*tokenizer.tokenize(" doesn"), "'t", *tokenizer.tokenize(" jump")]
    assert tokenizer.tokenize("x doesn't jump")[-3:] == expected
    numbers = tokenizer("2024年", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode([index]) for index in numbers[:4]] == list("2024")
    text = ENGLISH[0]
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    pieces = [tokenizer.decode([index]) for index in encoding["input_ids"]]
    # The space with which a piece may begin is not among its characters.
    characters = [text[start:end] for start, end in encoding["offset_mapping"]]
    assert characters == [piece.lstrip() for piece in pieces]


@pytest.mark.parametrize(
    "lowercase, strip_accents", [(True, None), (False, None), (True, False), (False, True)]
)
def test_wordpiece_equals_bert(lowercase, strip_accents):
    options = {"lowercase": lowercase, "strip_accents": strip_accents}
    tokenizer = RoFormerLiteTokenizer.train(
        CORPUS, vocab_size=500, algorithm="wordpiece", **options
    )
    bert = BertTokenizer(
        vocab=tokenizer.get_vocab(), do_lower_case=lowercase, strip_accents=strip_accents
    )
    # Other tools look for the template here, and would not find it in a sequence of processors.
    ours = tokenizer.backend_tokenizer.post_processor
    theirs = bert.backend_tokenizer.post_processor
    assert type(ours) is type(theirs)
    texts = [
        *ENGLISH,
        *CHINESE,
        "Ünïcödé DOG",
        "我们the dog\x00\ufffd\t!",
        "[MASK]",
        "",
        "a" * 150,
        *random_texts(500, seed=4),
    ]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert ids == bert(text)["input_ids"]
        decoded = bert.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special_tokens=True) == decoded
    pairs = tokenizer(ENGLISH, CHINESE[:2], return_token_type_ids=True)
    assert pairs.data == bert(ENGLISH, CHINESE[:2]).data


def test_an_open_file_and_batches_give_the_same_vocabulary(trained, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(CORPUS), encoding="utf-8")
    sources = ([CORPUS[:9], CORPUS[9:]], (text for text in CORPUS))
    for source in (*sources, path.open(encoding="utf-8")):
        tokenizer = RoFormerLiteTokenizer.train(source, vocab_size=700)
        assert tokenizer.get_vocab() == trained["bpe"].get_vocab()


def test_bad_sources_are_named(trained):
    for source, options, error, message in [
        (["\n", " \n"], {}, ValueError, "holds no text"),
        (["text", 3], {}, TypeError, "holds 3"),
        ("text.txt", {}, TypeError, "is one text"),
        (CORPUS, {"vocab_size": 40}, ValueError, "vocab_size=40 is too small"),
        (CORPUS, {"lowercase": True}, ValueError, "lowercase=True.*bpe is lossless"),
    ]:
        with pytest.raises(error, match=message):
            RoFormerLiteTokenizer.train(source, **options)
    with pytest.raises(ValueError, match="vocab_size=40 is too small"):
        trained["bpe"].train_new_from_iterator(CORPUS, 40)


FLAGS = ("add_bos_token", "add_eos_token")
# One text and a pair of texts.
CALLS = (("the dog",), ("the dog", "我们"))
# These are the ids of special tokens around one text and around two, for each value of the flags.
TEMPLATES = {tuple(flags): texts for *flags, texts in data_beside(__file__)}


@pytest.mark.parametrize("flags", TEMPLATES)
def test_every_way_leads_to_the_same_template(flags, trained, tmp_path):
    tokenizer = copy.deepcopy(trained["bpe"])
    tokenizer.save_pretrained(tmp_path / "first")
    asked = dict(zip(FLAGS, flags, strict=True))
    given = RoFormerLiteTokenizer.from_pretrained(tmp_path / "first", **asked)
    for step in (*TEMPLATES, flags):
        tokenizer.add_bos_token, tokenizer.add_eos_token = step
    tokenizer.save_pretrained(tmp_path / "saved")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    stock = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    new = loaded.train_new_from_iterator(CORPUS, 700)
    for other in (tokenizer, given, loaded, stock, new):
        ids_of_texts = {
            "a": other.encode("the dog", add_special_tokens=False),
            "b": other.encode("我们", add_special_tokens=False),
        }
        for template, texts in zip(TEMPLATES[flags], CALLS, strict=True):
            expected = []
            for part in template.split():
                expected += ids_of_texts.get(part) or [int(part)]
            assert other.encode(*texts) == expected
        # The space before a word is not among its characters.
        spans = other("the dog", return_offsets_mapping=True)["offset_mapping"]
        assert (3, 7) not in spans and any(start == 4 for start, _ in spans)
    for other in (tokenizer, given, loaded, new):
        assert (other.add_bos_token, other.add_eos_token) == flags
        assert other(text_target="the dog")["input_ids"][-1] == 3


@pytest.mark.parametrize("token", ["bos_token", "eos_token"])
def test_a_template_with_other_tokens_than_those_of_its_flags(token, trained, tmp_path):
    """A template stays as it was saved, although the names of special tokens have changed."""
    tokenizer = copy.deepcopy(trained["bpe"])
    tokenizer.add_special_tokens({token: "<other>"})
    tokenizer.save_pretrained(tmp_path)
    expected = [tokenizer.encode(*texts) for texts in CALLS]
    for given in ({}, {token: "<other>"}):
        loaded = AutoTokenizer.from_pretrained(tmp_path, **given)
        assert [loaded.encode(*texts) for texts in CALLS] == expected
