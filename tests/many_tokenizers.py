"""Small tokenizers of every kind that people use, trained on given texts."""

from collections.abc import Callable, Sequence
from functools import partial

from conftest import UNIGRAM
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import hf_roformer_lite as rl

SPECIAL_TOKENS = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def finished(
    backend: Tokenizer, left_out: Sequence[str] = (), **names: str
) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers with the special tokens of `names`, or with all but those of
    `left_out`."""
    names = names or {name: token for name, token in SPECIAL_TOKENS.items() if name not in left_out}
    start = names["cls_token"]
    end = names["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B {end}",
        special_tokens=[(token, backend.token_to_id(token)) for token in {start, end}],
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def own(algorithm: str, texts: list[str], **options: bool) -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(
        texts,
        vocab_size=500,
        algorithm=algorithm,
        min_frequency=1,
        show_progress=False,
        **options,
    )


def jieba(texts: list[str]) -> rl.RoFormerLiteJiebaTokenizer:
    characters = sorted(set("".join(texts).lower()))
    words = sorted(set(" ".join(texts).lower().split()))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *words]
    tokens += [f"##{character}" for character in characters]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return rl.RoFormerLiteJiebaTokenizer(vocabulary)


def sentencepiece_bpe(texts: list[str], spans_words: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer like those of Llama 2, Mistral and Gemma."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    learned = texts
    if not spans_words:
        learned = [word for text in texts for word in text.split()]
    # Rare characters have no tokens of their own, so that they become bytes.
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 5 + 200,
        special_tokens=[*SPECIAL_TOKENS.values(), *BYTE_TOKENS],
        limit_alphabet=60,
    )
    backend.train_from_iterator(learned, trainer)
    return finished(backend)


def sentencepiece_unigram(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer like the one of XLM-R.

    Every second word is one token, and the other words become "▁" and further pieces."""
    words = sorted({word for text in texts for word in text.split()})
    characters = sorted(set("".join(texts)) - {" "})
    pieces = [(token, 0.0) for token in SPECIAL_TOKENS.values()]
    pieces += [(f"▁{word}", -3.0) for word in words[::2]]
    pieces += [(word, -4.0) for word in words[1::2]]
    pieces += [("▁", -4.0), *((character, -9.0) for character in characters)]
    pieces = list(dict(reversed(pieces)).items())
    unknown = [token for token, _ in pieces].index("<unk>")
    backend = Tokenizer(models.Unigram(pieces, unknown))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace()
    return finished(backend)


def byte_level(texts: list[str], has_unknown: bool) -> PreTrainedTokenizerFast:
    """A tokenizer like the one of GPT-2.

    Those of Llama 3 and Qwen are similar, and have no unknown token and no mask."""
    left_out = () if has_unknown else ("unk_token", "mask_token")
    names = {name: token for name, token in SPECIAL_TOKENS.items() if name not in left_out}
    if has_unknown:
        names = dict.fromkeys(("unk_token", "cls_token", "sep_token", "eos_token"), "<|end|>")
        names["pad_token"] = "<|end|>"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(dict.fromkeys(names.values())),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(texts, trainer)
    return finished(backend, **names)


def bpe_with_word_ends(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer like the one of the first GPT."""
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL_TOKENS.values()),
        end_of_word_suffix="</w>",
    )
    backend.train_from_iterator(texts, trainer)
    return finished(backend)


TOKENIZERS: dict[str, Callable[[list[str]], PreTrainedTokenizerBase]] = {
    "own bpe": partial(own, "bpe"),
    "own unigram": lambda texts: rl.RoFormerLiteTokenizer.from_pretrained(UNIGRAM),
    "own wordpiece": partial(own, "wordpiece"),
    "jieba": jieba,
    "sentencepiece bpe": sentencepiece_bpe,
    "sentencepiece unigram": sentencepiece_unigram,
    "byte level": partial(byte_level, has_unknown=True),
    "byte level without unknown token": partial(byte_level, has_unknown=False),
    "cased wordpiece": partial(own, "wordpiece", lowercase=False),
    "word ends": bpe_with_word_ends,
}
