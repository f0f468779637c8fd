"""`add_bos_token` and `add_eos_token`: the template they make, whatever comes before and after."""

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_roformer_lite.model.tokenization_roformer_lite import ALGORITHMS, RoFormerLiteTokenizer

CORPUS = ["the quick brown fox, 我们老师", "the lazy dog 今天"] * 6
TEMPLATES = {
    (False, False): ("2 a 3", "2 a 3 b 3"),
    (True, False): ("2 a", "2 a 2 b"),
    (False, True): ("a 3", "a 3 b 3"),
    (True, True): ("2 a 3", "2 a 3 2 b 3"),
}


@pytest.fixture(params=ALGORITHMS)
def tokenizer(request) -> RoFormerLiteTokenizer:
    return RoFormerLiteTokenizer.train(CORPUS, vocab_size=500, algorithm=request.param, show_progress=False)


def check(tokenizer: PreTrainedTokenizerFast, flags: tuple[bool, bool]) -> None:
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the dog", "我们"))
    for wanted, ids in zip(TEMPLATES[flags], (tokenizer("the dog"), tokenizer("the dog", "我们")), strict=True):
        expected = [{"a": a, "b": b}.get(part) or [int(part)] for part in wanted.split()]
        assert ids["input_ids"] == sum(expected, [])


def check_all(tokenizer: RoFormerLiteTokenizer, flags: tuple[bool, bool]) -> None:
    assert (tokenizer.add_bos_token, tokenizer.add_eos_token) == flags
    check(tokenizer, flags)
    assert tokenizer(text_target="the dog")["input_ids"][-1] == 3
    offsets = tokenizer("fox dog", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    assert (4, 7) in offsets or (4, 5) in offsets  # the space before the word is no part of it


@pytest.mark.parametrize("flags", TEMPLATES)
def test_every_way_leads_to_the_same_template(tokenizer, flags, tmp_path):
    for before in TEMPLATES:
        tokenizer.add_bos_token, tokenizer.add_eos_token = before
        tokenizer.add_bos_token, tokenizer.add_eos_token = flags
        check_all(tokenizer, flags)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    check_all(loaded, flags)
    check(PreTrainedTokenizerFast.from_pretrained(tmp_path), flags)
    for old in (tokenizer, loaded):
        check_all(old.train_new_from_iterator(CORPUS, 400, show_progress=False), flags)
    loaded.add_bos_token = loaded.add_eos_token = False
    check_all(loaded, (False, False))
    loaded.save_pretrained(tmp_path)
    check_all(RoFormerLiteTokenizer.from_pretrained(tmp_path), (False, False))


@pytest.mark.parametrize("flags", TEMPLATES)
def test_asked_for_when_loaded(tokenizer, flags, tmp_path):
    tokenizer.save_pretrained(tmp_path / "first")
    asked = dict(zip(("add_bos_token", "add_eos_token"), flags, strict=True))
    loaded = RoFormerLiteTokenizer.from_pretrained(tmp_path / "first", **asked)
    check_all(loaded, flags)
    loaded.save_pretrained(tmp_path / "second")
    check_all(RoFormerLiteTokenizer.from_pretrained(tmp_path / "second"), flags)
    check(PreTrainedTokenizerFast.from_pretrained(tmp_path / "second"), flags)


def test_renamed_tokens(tokenizer):
    tokenizer.add_bos_token = True
    new = tokenizer.train_new_from_iterator(CORPUS, 400, special_tokens_map={"[CLS]": "<s>"}, show_progress=False)
    assert new.add_bos_token and new("the").tokens() == ["<s>", "the"]
