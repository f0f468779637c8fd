"""The order of a corpus: every block in each pass, balanced ranks, packed rows, mixtures, and how it is continued."""

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from conftest import build, stack_config
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM, RoFormerLiteTokenizer
from roformer_lite.errors import InputError
from roformer_lite.training.corpus import order, stream
from roformer_lite.training.corpus.corpus import BatchCollator, Corpus
from roformer_lite.training.corpus.order import Batch, CorpusBatchSampler, StepSize
from roformer_lite.training.corpus.packing import best_fit
from roformer_lite.training.corpus.stream import StreamedBatches
from roformer_lite.training.tasks.masking import MaskingCollator

PACKED, BY_TOKENS, BY_ROWS = StepSize(4, packing=128), StepSize(1, max_tokens=2_000), StepSize(8)


class MadeBlocks:
    """Blocks of random lengths in chunks; each token is the number of its block."""

    def __init__(self, chunks: int, seed: int = 0, first: int = 0, length: int | None = None):
        random = np.random.default_rng(seed)
        self.rows = random.integers(20, 60, chunks)
        self._lengths = [np.minimum(random.lognormal(3.2, 0.7, rows).astype(int) + 3, 100) for rows in self.rows]
        if length is not None:
            self._lengths = [np.full(rows, length) for rows in self.rows]
        self.tokens = int(sum(lengths.sum() for lengths in self._lengths))
        self.lengths_of_blocks = np.concatenate(self._lengths)
        self._first = first + np.cumsum([0, *self.rows])

    def lengths(self, chunk: int) -> np.ndarray:
        return self._lengths[chunk]

    def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.repeat(np.arange(self._first[chunk], self._first[chunk + 1]), self._lengths[chunk])
        return numbers, np.concatenate(([0], self._lengths[chunk].cumsum()))


def epochs(sampler: CorpusBatchSampler, number: int) -> list[Batch]:
    batches = []
    for epoch in range(number):
        sampler.set_epoch(epoch)
        batches += list(sampler)
    return batches


def blocks_of(batches: list[Batch]) -> np.ndarray:
    return np.array([block for batch in batches for item in batch.items for block in item])


@pytest.mark.parametrize("size", [PACKED, BY_TOKENS, BY_ROWS, StepSize(32, packing=384)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_block_equally_often(size, ranks):
    """Over three epochs of 150 chunks, which are more than two windows; ranks share what one process would see."""
    source = MadeBlocks(150)
    shares = [epochs(CorpusBatchSampler([source], size, None, 5, rank, ranks), 3) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert [batch.step for batch in shares[0]] == list(range(len(shares[0])))
    counts = np.bincount(
        blocks_of([batch for share in shares for batch in share]), minlength=len(source.lengths_of_blocks)
    )
    assert counts.max() - counts.min() <= 2
    if size.rows < 32:  # of large steps an epoch has few, so that it is not nearly a pass
        assert set(counts.tolist()) <= {2, 3, 4} and 2.8 < counts.mean() < 3.1
    if size is BY_ROWS:
        in_order = blocks_of([batch for step in zip(*shares, strict=True) for batch in step])
        everything = np.arange(len(source.lengths_of_blocks))
        assert sorted(in_order[: len(everything)]) == everything.tolist() != in_order[: len(everything)].tolist()


@pytest.mark.parametrize("size", [StepSize(2, packing=64), StepSize(1, max_tokens=200)])
@pytest.mark.parametrize("ranks", [1, 4])
def test_little_data(size, ranks):
    """Windows without enough for a step are learnt together with the next ones, also of a single block."""
    for blocks in (1, 3, 20):
        source = MadeBlocks(1, length=50)
        source.rows, source._lengths, source._first = np.array([blocks]), [np.full(blocks, 50)], np.array([0, blocks])
        source.tokens = 50 * blocks
        shares = [epochs(CorpusBatchSampler([source], size, None, 5, rank, ranks), 40) for rank in range(ranks)]
        assert all(len(batch.items) == (size.rows if size.packing else 4) for share in shares for batch in share)
        counts = np.bincount(blocks_of([batch for share in shares for batch in share]), minlength=blocks)
        assert counts.min() >= 39 and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("size", [StepSize(4, packing=384), StepSize(1, max_tokens=1_100), PACKED, BY_TOKENS])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_epoch_is_about_a_pass(size, ranks):
    """Also of blocks of 250 tokens, of which rows of 384 have one each."""
    source = MadeBlocks(150, length=None if size in (PACKED, BY_TOKENS) else 250)
    shares = [epochs(CorpusBatchSampler([source], size, None, 5, rank, ranks), 1) for rank in range(ranks)]
    shown = sum(len(blocks_of(share)) for share in shares)
    assert 0.97 < shown / source.rows.sum() < 1.03


@pytest.mark.parametrize("size", [PACKED, BY_TOKENS])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_get_the_same_number_of_tokens(size, ranks):
    source = MadeBlocks(150)
    tokens = np.array(
        [
            [
                source.lengths_of_blocks[blocks_of([batch])].sum()
                for batch in epochs(CorpusBatchSampler([source], size, None, 1, rank, ranks), 2)
            ]
            for rank in range(ranks)
        ]
    )
    spread = (tokens.max(0) - tokens.min(0)) / tokens.max(0)
    assert spread.max() < 0.05 and tokens.shape[1] > 20
    assert tokens.mean() > (0.99 if size.packing else 0.9) * (size.max_tokens or size.rows * size.packing)
    assert tokens.max() <= (size.max_tokens or size.rows * size.packing)


def text_of(lengths: np.ndarray) -> SimpleNamespace:
    """What `StreamedBatches` asks of a stream; a document has two tokens more than twice its length."""
    rows = [{"document": str(number), "text": "a " * length} for number, length in enumerate(lengths)]
    return SimpleNamespace(
        rows=lambda share, shares: rows[share::shares],
        tokenizer=RoFormerLiteTokenizer.train(["some words to learn from"] * 3, vocab_size=300),
        args=SimpleNamespace(block_size=128),
        task=SimpleNamespace(is_causal=False),
    )


@pytest.mark.parametrize("size", [StepSize(32, packing=128), BY_TOKENS])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_stream_get_the_same_number_of_tokens(size, ranks, monkeypatch):
    """Each makes its batches alone; a pass of a rank is not a whole number of windows."""
    monkeypatch.setattr(stream, "_WINDOW_TOKENS", 100_000)
    text = text_of(MadeBlocks(800).lengths_of_blocks)
    shares = [islice(StreamedBatches(text, size, 1, rank, ranks), 200) for rank in range(ranks)]
    tokens = np.array([[sum(len(row["input_ids"]) for row in batch.items) for batch in share] for share in shares])
    spread = (tokens.max(0) - tokens.min(0)) / tokens.max(0)
    assert spread.max() < 0.05 and tokens.max() <= (size.max_tokens or size.rows * size.packing)


@pytest.mark.parametrize("documents", [40, 99, 101, 250])
def test_windows_of_a_stream_are_full(documents, monkeypatch):
    """The end of a pass shares a window with the beginning of the next one, unless a pass is shorter than a window."""
    monkeypatch.setattr(stream, "_WINDOW_TOKENS", 4_000)  # 100 documents
    windows = StreamedBatches(text_of(np.full(documents, 19)), BY_ROWS, 0, 0, 1)._windows(0, 1)
    assert {len(block) for window in islice(windows, 3) for block in window} == {40}
    assert [len(window) for window in islice(windows, 5)] == [min(documents, 100)] * 5


@pytest.mark.parametrize("size", [PACKED, BY_TOKENS, BY_ROWS])
def test_continuing_comes_to_the_same_token(size):
    """As the Trainer does it, in the third epoch; the text of what was learnt before is not read."""
    source = MadeBlocks(150)
    corpus = Corpus([source], "", 100, packing=size.packing)

    def loader() -> DataLoader:
        made = DataLoader(**corpus.loading(size.rows, size.max_tokens, 3, 0, 2), collate_fn=list)
        return prepare_data_loader(made, num_processes=1, process_index=0)

    expected = epochs(corpus.loading(size.rows, size.max_tokens, 3, 0, 2)["batch_sampler"], 3)
    each = len(expected) // 3
    read, skipping = [], skip_first_batches(loader(), 5)
    source.read = lambda chunk, read_chunk=source.read: read.append(chunk) or read_chunk(chunk)
    skipping.batch_sampler.batch_sampler.set_epoch(2)
    got = list(skipping)
    assert [batch[0] for batch in got] == list(range(2 * each + 5, 3 * each))
    wanted = [[sorted(set(row["input_ids"])) for row in batch[1]] for batch in got]
    assert wanted == [[sorted(item) for item in batch.items] for batch in expected[2 * each + 5 :]]
    assert 0 < len(read) < 400  # each chunk of the third pass about once: the window keeps it


def test_seed_decides():
    drawn = [
        blocks_of(epochs(CorpusBatchSampler([MadeBlocks(9)], PACKED, None, seed), 1)).tolist() for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_mixtures_have_their_weights():
    first, second = MadeBlocks(200), MadeBlocks(30, seed=1)
    sampler = CorpusBatchSampler([first, second], PACKED, [0.7, 0.3], seed=0)
    blocks = blocks_of(epochs(sampler, 2))
    lengths = np.concatenate((first.lengths_of_blocks, second.lengths_of_blocks))[blocks]
    share = lengths[blocks >= len(first.lengths_of_blocks)].sum() / lengths.sum()
    assert abs(share - 0.3) < 0.02
    assert np.bincount(blocks)[len(first.lengths_of_blocks) :].min() >= 2  # the small one goes round


@pytest.mark.parametrize("lengths", [[7] * 5, [10, 1, 1], [1], [6, 6, 6, 4, 4, 4]])
def test_best_fit(lengths):
    bins = best_fit(np.array(lengths), 10)
    assert sorted(place for item in bins for place in item) == list(range(len(lengths)))
    assert max(sum(lengths[place] for place in item) for item in bins) <= 10
    assert len(bins) == {5: 5, 3: 2, 1: 1, 6: 3}[len(lengths)]


def test_too_few_tokens_for_a_block():
    with pytest.raises(InputError, match="--max_tokens_per_batch 99 is below the length of the blocks, 100"):
        Corpus([MadeBlocks(1)], "", 100).loading(8, 99, 0, 0, 1)


def test_windows_end_with_their_pass(monkeypatch):
    monkeypatch.setattr(order, "WINDOW_CHUNKS", 4)
    windows = list(islice(CorpusBatchSampler([MadeBlocks(10)], BY_ROWS)._windows(), 6))
    assert [len(window) for window in windows] == [4, 4, 2, 4, 4, 2]
    assert all(sorted(sum(windows[at : at + 3], [])) == list(range(10)) for at in (0, 3))


@pytest.mark.parametrize("model_class", [RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM])
def test_packed_documents_do_not_see_each_other(model_class):
    """Logits and loss of packed rows are those of every block alone, whatever is beside it."""
    tokenizer = RoFormerLiteTokenizer.train(["some words to learn from"] * 3, vocab_size=300)
    random = np.random.default_rng(0)
    alone = [random.integers(5, 40, length).tolist() for length in (9, 4, 6, 12, 3)]
    rows = [[alone[0], alone[1], alone[2]], [alone[3], alone[4]]]
    items = [{"input_ids": sum(row, []), "lengths": [len(ids) for ids in row]} for row in rows]
    is_causal = model_class is RoFormerLiteForCausalLM
    stock = DataCollatorForLanguageModeling(tokenizer, mlm=False) if is_causal else MaskingCollator(tokenizer)
    batch = BatchCollator(stock, seed=0, rank=0)(Batch(7, items))
    again = BatchCollator(stock, seed=0, rank=0)(Batch(7, items))
    assert getattr(stock, "generator", None) is None  # evaluation draws with it as if there were no training
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    if not is_causal:
        assert not torch.equal(BatchCollator(stock, 0, 1)(Batch(7, items))["labels"], batch["labels"])
    model = build(model_class, stack_config(vocab_size=len(tokenizer)))
    output = model(**batch)
    losses, items_learnt, at = 0.0, 0, [0, 0]
    for row, number in [(0, 9), (0, 4), (0, 6), (1, 12), (1, 3)]:
        place = slice(at[row], at[row] + number)
        ids, labels = batch["input_ids"][row : row + 1, place], batch["labels"][row : row + 1, place].clone()
        single = model(ids, labels=labels)
        torch.testing.assert_close(single.logits, output.logits[row : row + 1, place], rtol=0, atol=1e-5)
        learnt = int(((labels[:, 1:] if is_causal else labels) != -100).sum())
        losses, items_learnt, at[row] = losses + float(single.loss) * learnt, items_learnt + learnt, place.stop
    assert float(output.loss) == pytest.approx(losses / items_learnt, abs=1e-5)
