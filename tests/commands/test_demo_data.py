"""The demo's data never change, and it is not trained on its held-out examples."""

import hashlib

from roformer_lite.commands.demo_data import is_held_out, unique_examples


def test_nothing_held_out_is_trained_on():
    train = unique_examples(20_000, seed=1, held_out=False)
    held_out = unique_examples(2_000, seed=1, held_out=True)
    assert not {example.standard for example in train} & {example.standard for example in held_out}
    assert not {example.written for example in train} & {example.written for example in held_out}
    share = sum(is_held_out(str(number)) for number in range(10_000)) / 10_000
    assert 0.09 < share < 0.11


def test_the_data_never_change():
    examples = unique_examples(5_000, seed=1, held_out=False)
    lines = [f"{example.written}\t{example.standard}\t{example.kind}" for example in examples]
    digest = "61ec8a1544d16797cdb28fdaea50301769dd1daf6c7a069d68edbfd5324f5aba"
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == digest
    kinds = {example.kind for example in unique_examples(100, seed=1, held_out=True)}
    assert kinds == {"date-en", "date-zh"}
