"""Text that outgrows memory: prepared once, packed, mixed, and read as a stream."""

import json

import numpy as np
import pytest
import torch
from conftest import build, stack_config
from datasets import Dataset, load_from_disk
from transformers import AutoTokenizer

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
from roformer_lite.cli import main
from roformer_lite.data.blocks import BlockCollator, BlockCutter, best_fit, blocks, packed

SMALL = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 --use_cpu "
    "--disable_tqdm --per_device_train_batch_size 4"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two files of text, and what `prepare` made of each."""
    folder, draw = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdfgk" for b in ("ale", "orn", "ist", "und")]
    for name, lines in (("a", 150), ("b", 120)):
        text = [" ".join(draw.choice(words, draw.integers(2, 12))) for _ in range(lines)]
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
    options = ["--line_by_line", "--block_size", "16"]
    for name, tokenizer in (
        ("a", ["--vocab_size", "300"]),
        ("b", ["--tokenizer", str(folder / "of-a" / "tokenizer")]),
    ):
        files = ["--train_file", str(folder / f"{name}.txt"), "--output_dir", str(folder / f"of-{name}")]
        assert main(["prepare", "mlm", *files, *options, *tokenizer]) == 0
    return folder


def test_prepared_blocks_are_those_of_the_files(folder):
    made = load_from_disk(str(folder / "of-a" / "train"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "of-a" / "tokenizer")
    lines = (folder / "a.txt").read_text().splitlines()[:135]  # the last tenth is held out
    rows = Dataset.from_dict({"document": [str(n) for n in range(len(lines))], "text": lines})
    assert made["input_ids"][:] == [row["input_ids"] for row in blocks(rows, tokenizer, 16, is_causal=False)]
    assert (
        load_from_disk(str(folder / "of-a" / "validation"))["text"][:]
        == (folder / "a.txt").read_text().splitlines()[135:]
    )


@pytest.mark.parametrize("more", ["--num_train_epochs 1 --packing 32", "--mixture 0.7 0.3 --max_steps 6 --packing 32"])
def test_trained_on_prepared_data(folder, tmp_path, more):
    prepared = ["--prepared", str(folder / "of-a"), *([str(folder / "of-b")] if "mixture" in more else [])]
    assert main(["train", "mlm", *prepared, *SMALL, *more.split(), "--output_dir", str(tmp_path / "m")]) == 0
    results = json.loads((tmp_path / "m" / "results.json").read_text())
    assert results["settings"]["block_size"] == 16 and results["settings"]["line_by_line"] is True
    assert "counts of neighbouring tokens" in results["baselines"]


def test_a_stream(folder, tmp_path):
    options = "--streaming --line_by_line --packing 32 --vocab_size 300 --max_steps 8".split()
    more = ["--training_arguments", "save_strategy=steps", "save_steps=4", "eval_strategy=steps", "eval_steps=4"]
    files = ["--train_file", str(folder / "a.txt"), str(folder / "b.txt"), "--output_dir", str(tmp_path / "m")]
    assert main(["train", "causal", *files, *SMALL, *options, *more]) == 0
    results = json.loads((tmp_path / "m" / "results.json").read_text())
    assert results["training"]["steps"] == 8 and results["rows"] == {"validation": 27}


def test_refused(folder, tmp_path, capsys):
    def refused(*options: str) -> str:
        assert main(["train", *options, "--output_dir", str(tmp_path / "m")]) == 2
        return capsys.readouterr().err

    one = str(folder / "of-a")
    assert "was prepared for mlm; this is causal" in refused("causal", "--prepared", one)
    assert "--vocab_size 9 has no effect beside --prepared" in refused("mlm", "--prepared", one, "--vocab_size", "9")
    assert "cannot be read" in refused("mlm", "--prepared", str(folder))
    assert main(["prepare", "mlm", "--train_file", str(folder / "a.txt"), "--output_dir", one]) == 2
    assert "exists; remove it" in capsys.readouterr().err
    (tmp_path / "blank.txt").write_text("\n \n")
    assert (
        main(["prepare", "mlm", "--train_file", str(tmp_path / "blank.txt"), "--output_dir", str(tmp_path / "p")]) == 2
    )
    assert "there is no row with text" in capsys.readouterr().err and not (tmp_path / "p").exists()


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_hold_all_tokens_and_are_alike_in_length(is_causal):
    cutter = BlockCutter(1, 2, 10, is_causal)
    documents = {f"d{n}": list(range(100, 100 + n)) for n in (1, 7, 8, 9, 10, 17, 55)}
    pieces = [(name, ids[at : at + 3]) for name, ids in documents.items() for at in range(0, len(ids), 3)]
    made = [block.tolist() for block in cutter.blocks(pieces)]
    assert max(map(len, made)) <= 10
    tokens = [token for block in made for token in block if token > 2]
    assert tokens == [token for ids in documents.values() for token in ids]
    if not is_causal:
        assert all(block[0] == 1 and block[-1] == 2 for block in made)


@pytest.mark.parametrize("lengths", [[7] * 5, [10, 1, 1], [1], [6, 6, 6, 4, 4, 4]])
def test_best_fit(lengths):
    bins = best_fit(lengths, 10)
    assert sorted(place for own in bins for place in own) == list(range(len(lengths)))
    assert all(sum(lengths[place] for place in own) <= 10 for own in bins)
    assert len(bins) == {7: 5, 10: 2, 1: 1, 6: 3}[lengths[0]]


@pytest.mark.parametrize("model_class", [RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM])
def test_packed_documents_do_not_see_each_other(model_class, folder):
    """The loss of packed rows is that of the blocks, each in a row of its own."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "of-a" / "tokenizer")
    alone = load_from_disk(str(folder / "of-a" / "train")).select(range(12))
    alone = alone.add_column("attention_mask", [[1] * len(ids) for ids in alone["input_ids"]])
    is_causal = model_class is RoFormerLiteForCausalLM
    collator = BlockCollator(
        tokenizer, mlm=not is_causal, mlm_probability=1.0, mask_replace_prob=1, random_replace_prob=0
    )
    model = build(model_class, stack_config(vocab_size=len(tokenizer), is_decoder=is_causal)).eval()
    losses = [model(**collator(list(rows))).loss.item() for rows in (alone, packed(alone, 32))]
    assert len(packed(alone, 32)) < 12 and losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_the_collator_masks_a_token_of_every_batch_and_none_of_the_special_ones(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder / "of-a" / "tokenizer")
    collator = BlockCollator(tokenizer, mlm_probability=1e-9)
    row = tokenizer("bale")
    for seed in range(20):
        torch.manual_seed(seed)
        batch = collator([dict(row)])
        masked = (batch["labels"] != -100).nonzero()
        assert len(masked) == 1 and batch["input_ids"][0, masked[0, 1]] == tokenizer.mask_token_id
        assert batch["labels"].max() not in tokenizer.all_special_ids
