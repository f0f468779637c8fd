"""The task `tokenizer`: lines per second of tokenizers on real text."""

import gzip
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import BertTokenizer, PreTrainedTokenizerBase, RoFormerTokenizer

from hf_roformer_lite import RoFormerLiteJiebaTokenizer, RoFormerLiteTokenizer

from .stacks import OURS
from .tasks import Comparison
from .timing import Contender

OUTPUTS: dict[str, dict[str, Any]] = {
    "ids": {},
    "offsets": {"return_offsets_mapping": True},
    "tensors": {"padding": True, "truncation": True, "max_length": 128, "return_tensors": "pt"},
}


@dataclass
class TextOptions:
    """Options of the tasks on text."""

    files: list[Path] = field(
        default_factory=list,
        metadata={"help": "UTF-8 text, plain or .gz, for tasks on text; a line is read up to its first tab"},
    )
    tokenizer: Literal["jieba", "wordpiece"] = "jieba"
    output: Literal["ids", "offsets", "tensors"] = "ids"
    lines: int = field(default=10_000, metadata={"help": "number of lines, taken evenly from all files"})


def read(files: list[Path]) -> Iterator[str]:
    if not files:
        raise SystemExit("files=[]: this task reads text; give --files.")
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from filter(str.strip, (line.rstrip("\n").partition("\t")[0] for line in file))


def jieba_vocabulary(lines: list[str], size: int) -> dict[str, int]:
    """Special tokens, all characters, these as ## pieces, and the most frequent words."""
    import rjieba

    from hf_roformer_lite.model.tokenization_roformer_lite import SPECIAL_TOKENS

    words = Counter(word for line in lines for word in rjieba.cut(line.lower(), False) if not word.isspace())
    characters = sorted({character for word in words for character in word})
    entries = [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters if character.isalnum())]
    entries += [word for word, _ in words.most_common(size)]
    return {word: index for index, word in enumerate(list(dict.fromkeys(entries))[:size])}


def make_tokenizers(options: TextOptions, lines: list[str], vocab_size: int) -> dict[str, PreTrainedTokenizerBase]:
    """Ours and the tokenizer of transformers with the same vocabulary."""
    if options.tokenizer == "jieba":
        vocab = jieba_vocabulary(lines, vocab_size)
        return {OURS: RoFormerLiteJiebaTokenizer(vocab), "roformer": RoFormerTokenizer(vocab)}
    ours = RoFormerLiteTokenizer.train(lines, vocab_size=vocab_size, algorithm="wordpiece")
    return {OURS: ours, "bert": BertTokenizer(ours.get_vocab())}


def compare_tokenizers(options: TextOptions, vocab_size: int, batch: int) -> Comparison:
    """Tokenization of lines, batch by batch, in one thread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    everything = list(read(options.files))
    lines = everything[:: max(1, len(everything) // options.lines)][: options.lines]
    batches = [lines[start : start + batch] for start in range(0, len(lines), batch)]

    def run(tokenizer: PreTrainedTokenizerBase) -> None:
        for one in batches:
            tokenizer(one, **OUTPUTS[options.output])

    tokenizers = make_tokenizers(options, everything, vocab_size)
    if options.tokenizer == "jieba":
        for one in batches:
            theirs, mine = (t(one, return_offsets_mapping=True).data for t in tokenizers.values())
            if theirs != mine:
                raise SystemExit("the two tokenizers give different ids or offsets")
    contenders = [
        Contender(name, lambda tokenizer=tokenizer: run(tokenizer)) for name, tokenizer in tokenizers.items()
    ]
    return Comparison(len(lines), contenders, unit="lines")
