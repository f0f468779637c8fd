"""Lines per second of RoFormerLiteJiebaTokenizer and of HF's RoFormerTokenizer, in turns, one thread, CPU time."""

import gzip
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import rjieba
from transformers import HfArgumentParser, RoFormerTokenizer

from hf_roformer_lite.tokenization_jieba import RoFormerLiteJiebaTokenizer
from hf_roformer_lite.tokenization_roformer_lite import SPECIAL_TOKENS

SETTINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "ids and offsets": {"return_offsets_mapping": True},
    "padded tensors of 128": {"padding": True, "truncation": True, "max_length": 128, "return_tensors": "pt"},
}


@dataclass
class Arguments:
    files: list[Path] = field(metadata={"help": "UTF-8 text, .gz or plain; of a line, what precedes a tab is read"})
    vocab_size: int = field(default=50_000, metadata={"help": "characters, ## pieces and words, counted on all lines"})
    lines: int = field(default=10_000, metadata={"help": "evenly taken from all lines"})
    batch_size: int = 1000
    rounds: int = 7


def read(files: list[Path]) -> Iterator[str]:
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from filter(str.strip, (line.rstrip("\n").partition("\t")[0] for line in file))


def vocabulary(lines: list[str], size: int) -> dict[str, int]:
    words = Counter(word for line in lines for word in rjieba.cut(line.lower(), False) if not word.isspace())
    characters = sorted({character for word in words for character in word})
    entries = [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters if character.isalnum())]
    entries += [word for word, _ in words.most_common(size)]
    return {word: index for index, word in enumerate(list(dict.fromkeys(entries))[:size])}


def seconds(call: Callable, batches: list[list[str]], **options: Any) -> float:
    start = time.process_time()
    for batch in batches:
        call(batch, **options)
    return time.process_time() - start


def main() -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    everything = list(read(arguments.files))
    vocab = vocabulary(everything, arguments.vocab_size)
    lines = everything[:: max(1, len(everything) // arguments.lines)][: arguments.lines]
    batches = [lines[start : start + arguments.batch_size] for start in range(0, len(lines), arguments.batch_size)]
    theirs, ours = RoFormerTokenizer(vocab), RoFormerLiteJiebaTokenizer(vocab)
    print(f"{len(vocab)} entries, {len(lines)} lines of {sum(map(len, lines)) / len(lines):.0f} characters")
    for batch in batches:
        if theirs(batch, return_offsets_mapping=True).data != ours(batch, return_offsets_mapping=True).data:
            raise SystemExit("the tokenizers differ")
    for name, options in SETTINGS.items():
        rounds = [
            [seconds(tokenizer, batches, **options) for tokenizer in (theirs, ours)] for _ in range(arguments.rounds)
        ]
        hf, lite = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratio = statistics.median(slow / fast for slow, fast in rounds)
        print(f"{name}: HF {len(lines) / hf:,.0f} lines/s, ours {len(lines) / lite:,.0f} lines/s, {ratio:.2f} times")


if __name__ == "__main__":
    main()
