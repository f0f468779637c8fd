"""Tests that RoFormerLiteJiebaTokenizer equals RoFormerTokenizer of transformers.

Both are made from the same vocabulary. Other tests concern storage, processes and threads.
"""

import copy
import json
import pickle
import sys

import pytest
from conftest import data_beside
from program import in_new_process
from test_tokenization import random_texts
from transformers import AddedToken, BatchEncoding, RoFormerTokenizer

from hf_roformer_lite.model.tokenization_jieba import RoFormerLiteJiebaTokenizer
from hf_roformer_lite.model.tokenization_roformer_lite import SPECIAL_TOKENS

rjieba = pytest.importorskip("rjieba", reason="needs the extra `jieba`")

LINES = [
    "今天天气非常好。",
    "在北京大学读书的小明，2024年花3.5万元买了一台iPhone15-Pro！",
    "　　话说天下大势，分久必合，合久必分。",
    "王教练说：“打得不错”……（完）",
    "Ｆｕｌｌｗｉｄｔｈ　ＡＢＣ１２３，全角！？",
    "Ünïcödé CAFÉ İstanbul ǅ naïve ŒUVRE, ẞ Straße Å",
    "cafe\u0301 A\u030a\u0301 q\u0323\u0307 \u302e\U0001d165\u0301",
    "한국어 각 ㄱㅏ, ひらがなガ, カ\u3099, ไทย, हिन्दी, עִבְרִית",
    "👨\u200d👩\u200d👧 ❤️ 天😀气 🇨🇳",
    "a\tb\r\nc\x0bd\x0ce\x85f\u00a0g\u2028h\u3000i\u200bj\ufeffk",
    "中\x00国\x07人\ufffd民\x7f大\u200d学\ue000",
    "don't C++ C# A&B a.b_c#d+e%f 50%-60% T恤 AA制 卡拉OK http://a.cn/x?y=1",
    "##气 ##a [UN K] < e > don##t",
    "𠀀𠮷野家㐀豈丽々〇〆ヶ",
    "[CLS]今天[MASK]很好[SEP] [mask] [PAD][UNK]x",
    "a" * 150 + " " + "天" * 120 + " " + "9" * 101,
    " ",
    "",
    "\u0301",
    "   多  个   空 格  ",
    "美国队长和天气预报员都在下雨天学习机器学习",
]


def vocabulary(lines: list[str]) -> dict[str, int]:
    """Special tokens, characters, and the words of the lines. ASCII characters are also entered
    with `##` before them."""
    words = [word for line in lines for word in rjieba.cut(line.lower(), False)]
    words = [word for word in words if not word.isspace()]
    characters = sorted(set("".join(words)))
    pieces = [f"##{character}" for character in characters if character.isascii()]
    entries = dict.fromkeys([*SPECIAL_TOKENS, *characters, *pieces, *words])
    return {word: index for index, word in enumerate(entries)}


# The vocabulary is that of every second line, so that the others have unknown characters and words.
VOCABULARY = vocabulary([*LINES[::2], "don a cafe 天气预报 机器学习"])


@pytest.fixture(scope="module")
def both() -> tuple[RoFormerLiteJiebaTokenizer, RoFormerTokenizer]:
    return RoFormerLiteJiebaTokenizer(VOCABULARY), RoFormerTokenizer(VOCABULARY)


def assert_same(ours: BatchEncoding, theirs: BatchEncoding) -> None:
    assert list(ours) == list(theirs)
    assert ours.data == theirs.data
    assert ours.is_fast and ours.n_sequences == theirs.n_sequences
    assert len(ours.encodings) == len(theirs.encodings)
    for one, other in zip(ours.encodings, theirs.encodings, strict=True):
        for name in "ids tokens offsets word_ids sequence_ids type_ids special_tokens_mask".split():
            assert getattr(one, name) == getattr(other, name), name


TRICKY = [
    *" \t\x00\x85\u3000\u200d\ufe0f\u0301\u0323\u302eéİ각aAbB1９.%-#，。天气预报我们大学",
    "[SEP]",
    "##",
]


@pytest.mark.parametrize("strip_accents", [None, False, True])
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_ids_and_offsets_are_those_of_hf(do_lower_case, strip_accents):
    options = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    ours = RoFormerLiteJiebaTokenizer(VOCABULARY, **options)
    theirs = RoFormerTokenizer(VOCABULARY, **options)
    texts = LINES + random_texts(1500, seed=1, tricky=TRICKY)
    flags = {
        "return_offsets_mapping": True,
        "return_special_tokens_mask": True,
        "return_length": True,
    }
    assert_same(ours(texts, **flags), theirs(texts, **flags))
    assert ours(texts).data == theirs(texts).data


@pytest.mark.parametrize("options", data_beside(__file__), ids=lambda options: next(iter(options)))
def test_requests(both, options):
    """Texts, pairs, words and empty texts are encoded alike with every option."""
    ours, theirs = both
    long = [line for line in LINES if len(line) > 7]
    for texts in ((LINES,), (long, long[::-1]), ("",), (" ", "天气"), (LINES[1], "")):
        assert_same(ours(*texts, **options), theirs(*texts, **options))
    words = [list(rjieba.cut(line)) for line in long]
    assert_same(
        ours(words, is_split_into_words=True, **options),
        theirs(words, is_split_into_words=True, **options),
    )


def test_a_vocabulary_that_lacks_special_tokens():
    vocabulary = {"我": 0, "们": 1, "[UNK]": 2, "<s>": 3}
    options = {"cls_token": "<s>", "sep_token": "</s>"}
    ours = RoFormerLiteJiebaTokenizer(vocabulary, **options)
    theirs = RoFormerTokenizer(vocabulary, **options)
    texts = ["我们<s>", "他"]
    assert_same(ours(texts, padding=True), theirs(texts, padding=True))


def test_added_tokens_decoding_and_storage(tmp_path):
    tokenizers = [
        kind(VOCABULARY, model_max_length=64)
        for kind in (RoFormerLiteJiebaTokenizer, RoFormerTokenizer)
    ]
    texts = [
        *LINES,
        "今天天气预报 Müller说 <x> MULLER muller x天气x天<x >",
        "天气 气象 单 词 单词a 单词",
        "a<mask>b <end>",
    ]
    before = tokenizers[0](texts)["input_ids"]
    new = [
        "天气",
        "Müller",
        AddedToken("<x>", lstrip=True, rstrip=True),
        AddedToken("单词", single_word=True),
    ]
    for tokenizer in tokenizers:
        assert tokenizer.add_tokens(new) == 3 + ("天气" not in VOCABULARY)
        tokenizer.add_special_tokens({"extra_special_tokens": ["<end>"], "mask_token": "<mask>"})
    ours, theirs = tokenizers
    expected = theirs(texts, return_offsets_mapping=True)
    assert expected["input_ids"] != before
    # Saving leaves the tokenizer of transformers without Jieba, so it must not encode after this.
    theirs.save_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    saved_by_us = (tmp_path / "ours/tokenizer.json").read_bytes()
    assert saved_by_us == (tmp_path / "theirs/tokenizer.json").read_bytes()
    copies = {
        "itself": ours,
        "unpickled": pickle.loads(pickle.dumps(ours)),
        "copied": copy.deepcopy(ours),
    }
    for kind in ("ours", "theirs"):
        copies[f"saved as {kind}"] = RoFormerLiteJiebaTokenizer.from_pretrained(tmp_path / kind)
    for how, tokenizer in copies.items():
        assert tokenizer(texts, return_offsets_mapping=True).data == expected.data, how
        assert tokenizer.get_vocab() == theirs.get_vocab() and tokenizer.model_max_length == 64, how
    for skip in (False, True):
        found = ours.batch_decode(expected["input_ids"], skip_special_tokens=skip)
        assert found == theirs.batch_decode(expected["input_ids"], skip_special_tokens=skip)
    with pytest.raises(NotImplementedError, match="cannot be trained"):
        ours.train_new_from_iterator(LINES, 300)


def test_vocab_txt_alone(both, tmp_path):
    (path,) = both[0].save_vocabulary(str(tmp_path))
    for tokenizer in (
        RoFormerLiteJiebaTokenizer(path),
        RoFormerLiteJiebaTokenizer.from_pretrained(tmp_path),
    ):
        assert tokenizer(LINES).data == both[1](LINES).data and tokenizer.get_vocab() == VOCABULARY


# This runs in a process of its own, because a fork inherits locks that threads of other tests hold.
FORKS_AND_THREADS = """
import json, multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
from torch.utils.data import DataLoader
from hf_roformer_lite import RoFormerLiteJiebaTokenizer
tokenizer = RoFormerLiteJiebaTokenizer(json.loads(sys.argv[1]))
lines = json.loads(sys.argv[2])
# The forks inherit a tokenizer that has been used.
tokenizer(lines)
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = [[encoding.data["input_ids"] for encoding in pool.map(tokenizer, lines)]]
loader = DataLoader(lines, batch_size=5, num_workers=2, collate_fn=tokenizer)
found.append([ids for batch in loader for ids in batch["input_ids"]])
# Each thread reads encodings of the backend, while other threads change the backend.
def encode(_):
    return [encoding.ids for encoding in tokenizer(lines).encodings]
with ThreadPoolExecutor(3) as pool:
    found += pool.map(encode, range(30))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_threads_and_other_processes(both):
    given = [json.dumps(VOCABULARY), json.dumps(LINES)]
    printed = in_new_process("-c", FORKS_AND_THREADS, *given).stdout
    assert json.loads(printed.splitlines()[-1]) == [both[1](LINES)["input_ids"]] * 32


def test_without_rjieba(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ImportError, match="pip install rjieba"):
        RoFormerLiteJiebaTokenizer(VOCABULARY)
