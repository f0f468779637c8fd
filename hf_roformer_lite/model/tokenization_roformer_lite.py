"""Tokenizer: byte-level BPE or Unigram with byte fallback, both lossless, or BERT's WordPiece."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from .configuration_roformer_lite import RemoteCodeTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALGORITHMS = ("bpe", "unigram", "wordpiece")
_ROLES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
_ROLES |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}

# Scripts written without spaces; the last two are the long-vowel signs, whose script property is
# Common.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\x{30FC}\x{FF70}"
SPACED_LETTER = rf"[\p{{L}}\p{{M}}&&[^{UNSPACED}]]"
# No token crosses the border of two of these: an English contraction, a run of Chinese (or of
# another script without spaces), a word with the space before it, one digit, a run of punctuation
# and symbols, line ends, other white space.
_SPLIT_PATTERN = (
    r"(?i:['’](?:[sdmt]|ll|ve|re)(?!\p{L}))"
    rf"|[{UNSPACED}][{UNSPACED}\p{{M}}]*"
    rf"| ?{SPACED_LETTER}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s"
)
# Puts a space before a word of spaced script and before nothing else (see the class, "Text split
# into words").
_SPACE_BEFORE_WORD = normalizers.Sequence(
    [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?!{SPACED_LETTER})"), "")]
)
# Cuts the spaces that pieces begin with from their offsets.
_TRIM_OFFSETS = processors.ByteLevel(trim_offsets=True)


class RoFormerLiteTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    Fast tokenizer that its `tokenizer.json` describes completely: `PreTrainedTokenizerFast` reads
    the same file and gives the same ids for plain text. Make one with
    `RoFormerLiteTokenizer.train`, or load one with `from_pretrained`.

    **Template.** `[CLS] x [SEP]`, and `[CLS] a [SEP] b [SEP]` for pairs (token types 0 and 1).
    `bos_token` is `[CLS]` and `eos_token` is `[SEP]`, so an encoder–decoder starts with `[CLS]` and
    ends with `[SEP]`. Prompts of a causal language model must not end with `[SEP]`: with
    `tokenizer.add_bos_token = True` the template is `[CLS] x`, also when saved; `add_eos_token =
    True` alone gives `x [SEP]`, and with both off, as they are at first, the template is the one
    above. Both are read from the template in `tokenizer.json`.

    **Labels.** `tokenizer(text_target=y)`, and the `labels` of `tokenizer(x, text_target=y)`, are
    `y [SEP]`: exactly what a decoder that starts with `[CLS]` has to predict. `decoder_input_ids`
    are therefore the labels moved to the right by one, with `[CLS]` in front. `max_length` and
    `max_target_length` count the `[SEP]`.

    **Lossless.** With BPE and Unigram, `decode(encode(text), skip_special_tokens=True) == text` for
    any string that UTF-8 can hold. A literal `[SEP]` in the text is the special token, as
    everywhere in transformers, unless `split_special_tokens=True`. A lone surrogate is no Unicode
    text: encoding it raises `TypeError`.

    **Text split into words** (`is_split_into_words=True`). With BPE and Unigram, a word that begins
    with a letter of a script written with spaces is encoded as within a sentence, with the space
    before it; Chinese, digits and punctuation get none. Offsets count from the start of each word.
    For Chinese labelled character by character take WordPiece, the only one whose tokens never span
    two Chinese characters. In running text, `word_ids()` of a Unigram tokenizer count each
    character without a piece as a word.

    `token_type_ids` are not among `model_input_names` (`generate` of an encoder–decoder refuses
    them); ask with `return_token_type_ids=True`. Encoding labels or split words replaces parts of
    the backend during the call: as with the padding and truncation of every fast tokenizer, use one
    instance in one thread at a time.

    Args:
        tokenizer_file: path of a `tokenizer.json`, taken as it is.
        tokenizer_object: the same as a `tokenizers.Tokenizer`. One of the two is required
            (`ValueError`).
        pad_token, unk_token, cls_token, sep_token, mask_token, bos_token, eos_token: other special
            tokens.
        model_max_length: longest sequence in tokens, for `truncation=True` and the warning about
            long text.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, *, model_max_length: int = 512, **kwargs: Any):
        # tokenizer.json holds the added tokens; a second list would bring back the names that
        # retraining has changed.
        kwargs.pop("added_tokens_decoder", None)
        super().__init__(model_max_length=model_max_length, **{**_ROLES, **kwargs})
        flags = [self.init_kwargs.pop(flag, None) for flag in ("add_bos_token", "add_eos_token")]
        if flags == [None, None]:  # else the base class has made the template that they ask for
            flags = self._flags_of_template()
            if any(flags):  # setting one makes its template
                self.add_bos_token, self.add_eos_token = flags

    @classmethod
    def convert_to_native_format(
        cls, trust_remote_code: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Hands `tokenizer.json` to `__init__`; the base class would rebuild the pipeline from the
        vocabulary."""
        return kwargs

    @classmethod
    def train(
        cls,
        source: str | os.PathLike | Iterable[str] | Iterable[os.PathLike],
        *,
        vocab_size: int = 8192,
        algorithm: str = "bpe",
        min_frequency: int = 2,
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        model_max_length: int = 512,
        show_progress: bool = True,
        **trainer_options: Any,
    ) -> "RoFormerLiteTokenizer":
        """
        Trains a tokenizer. Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK].

        * `"bpe"` — pieces of UTF-8 bytes (Sennrich et al. 2016 on bytes, as GPT-2); never gives
          [UNK].
        * `"unigram"` — pieces of characters (Kudo 2018); a character without a piece is written as
          one `<0x..>` token for each of its UTF-8 bytes; never gives [UNK]. Spaces stay spaces and
          nothing is normalised. Characters seen less than `min_frequency` times, or in the rarest
          0.05 % of the text, get no piece of their own.
        * `"wordpiece"` — BERT's (Devlin et al. 2019): control characters removed, Chinese
          characters apart, optionally lower case and without accents. Not lossless, and unknown
          characters are [UNK].

        Training takes quadratic time in the length of a word. A longer run than 256 characters of
        one kind (letters without a space, punctuation, white space) is therefore learned from in
        parts of 256, as if they were words of their own. The tokenizer itself splits no such run:
        this concerns only what it can learn.

        Args:
            source: the path of a UTF-8 text file (`.gz` is unpacked) read line by line, a list of
                such paths, or any iterable of texts. A list is taken for paths if its first item is
                a path object, names a file, or ends in .txt or .gz.
            vocab_size: upper bound on the entries, special tokens and bytes included.
            min_frequency: pairs seen less often are not merged (bpe, wordpiece); see above for
                unigram.
            lowercase, strip_accents: wordpiece only; lower case by default, accents as `lowercase`.
            model_max_length: see the class.
            trainer_options: further arguments of the trainer in `tokenizers`, as `limit_alphabet`
                (bpe, wordpiece).

        Raises:
            ValueError: unknown algorithm, `lowercase` or `strip_accents` with a lossless algorithm,
                a source without text, a line that is not UTF-8 (its file and number are named),
                `vocab_size` below the alphabet.
            FileNotFoundError, TypeError: a path that is no file, an item of the source that is no
                string.
        """
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"algorithm={algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}"
            )
        if algorithm != "wordpiece" and (lowercase or strip_accents):
            raise ValueError(
                f"{lowercase=}, {strip_accents=}: {algorithm} is lossless; only wordpiece can do that"
            )
        training = _training()
        backend = untrained_backend(algorithm, lowercase is not False, strip_accents)
        untrained = cls(tokenizer_object=backend, model_max_length=model_max_length)
        options = {
            "min_frequency": min_frequency,
            "show_progress": show_progress,
            **trainer_options,
        }
        return training.trained(
            untrained, training.read_texts(source), vocab_size, is_bound=True, **options
        )

    def train_new_from_iterator(
        self,
        text_iterator: Iterable[str] | Iterable[list[str]],
        vocab_size: int,
        length: int | None = None,
        new_special_tokens: list[Any] | None = None,
        special_tokens_map: dict[str, str] | None = None,
        min_frequency: int = 2,
        **kwargs: Any,
    ) -> "RoFormerLiteTokenizer":
        """
        Trains a tokenizer of the same kind, with the same special tokens and settings, on other
        text: an iterable of texts or of lists of texts. The arguments are those of the base class,
        `min_frequency` that of `train`, and `kwargs` go to the trainer in `tokenizers`. As with the
        stock tokenizers the vocabulary is larger than `vocab_size` when the alphabet alone is; a
        warning says so.
        """
        names = {"new_special_tokens": new_special_tokens, "special_tokens_map": special_tokens_map}
        kwargs |= {"length": length, "min_frequency": min_frequency}
        return _training().trained(self, text_iterator, vocab_size, **names, **kwargs)

    def __call__(
        self,
        text=None,
        text_pair=None,
        text_target=None,
        text_pair_target=None,
        *args: Any,
        **kwargs: Any,
    ) -> BatchEncoding:
        """As in every tokenizer of transformers; `text_target` gives labels without a leading
        `[CLS]`."""
        if text_target is None:
            return super().__call__(text, text_pair, None, None, *args, **kwargs)
        inputs = (
            None if text is None else super().__call__(text, text_pair, None, None, *args, **kwargs)
        )
        with self._replaced(post_processor=self.template(start=False)):
            target = super().__call__(None, None, text_target, text_pair_target, *args, **kwargs)
        if inputs is None:
            return target
        inputs["labels"] = target["input_ids"]
        return inputs

    # A private name of transformers: what every way of encoding comes to, and no public one is
    # called by them all.
    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        *args: Any,
        is_split_into_words: bool = False,
        **kwargs: Any,
    ) -> BatchEncoding:
        spaced = is_split_into_words and not isinstance(
            self.backend_tokenizer.model, models.WordPiece
        )
        with self._replaced(**({"normalizer": _SPACE_BEFORE_WORD} if spaced else {})):
            return super()._encode_plus(
                text, text_pair, *args, is_split_into_words=is_split_into_words, **kwargs
            )

    @contextmanager
    def _replaced(self, **parts: Any) -> Iterator[None]:
        """Replaces parts of the backend, and puts the old ones back whatever happens in between."""
        before = {name: getattr(self.backend_tokenizer, name) for name in parts}
        try:
            for name, part in parts.items():
                setattr(self.backend_tokenizer, name, part)
            yield
        finally:
            for name, part in before.items():
                setattr(self.backend_tokenizer, name, part)

    def update_post_processor(self) -> None:
        """Called when `add_bos_token` or `add_eos_token` is set; see the class, "Template"."""
        if self.add_bos_token or self.add_eos_token:
            super().update_post_processor()
            backend = self.backend_tokenizer
            if not isinstance(backend.model, models.WordPiece):
                backend.post_processor = processors.Sequence(
                    [_TRIM_OFFSETS, backend.post_processor]
                )
        elif self.backend_tokenizer.post_processor is None:
            # a `tokenizer.json` of others, without a template, is taken as it is
            super().update_post_processor()
        else:
            self.backend_tokenizer.post_processor = self.template()

    def _flags_of_template(self) -> tuple[bool, bool]:
        """`add_bos_token` and `add_eos_token` of the template in `tokenizer.json`."""
        if self.backend_tokenizer.post_processor is None:
            return False, False
        state = json.loads(self.backend_tokenizer.post_processor.__getstate__())
        for part in state.get("processors", [state]):
            single, pair = (
                [next(iter(item.values()))["id"] for item in part.get(name, [])]
                for name in ("single", "pair")
            )
            if single:
                flags = single[0] == self.bos_token, single[-1] == self.eos_token
                # else the template of the class
                is_set = not all(flags) or pair.count(self.bos_token) == 2
                return flags if is_set else (False, False)
        return False, False

    def template(self, start: bool = True) -> processors.Sequence:
        """The special tokens around a text or a pair, with its present ids; without `start`, around
        labels."""
        return make_template(
            self.backend_tokenizer, self.cls_token if start else None, self.sep_token
        )


def untrained_backend(algorithm: str, lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    """The pipeline of an algorithm with nothing but the special tokens in its vocabulary."""
    split = pre_tokenizers.Split(Regex(_SPLIT_PATTERN), "isolated")
    if algorithm == "bpe":
        backend = Tokenizer(models.BPE())
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        backend.decoder = decoders.ByteLevel()
    elif algorithm == "unigram":
        pieces = [(token, 0.0) for token in SPECIAL_TOKENS]
        backend = Tokenizer(models.Unigram(pieces, unk_id=SPECIAL_TOKENS.index("[UNK]")))
        backend.pre_tokenizer = pre_tokenizers.Sequence([split])
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    else:
        vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(
            strip_accents=strip_accents, lowercase=lowercase
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = make_template(backend, "[CLS]", "[SEP]")
    return backend


def make_template(backend: Tokenizer, start: str | None, end: str) -> processors.Sequence:
    """The special tokens around a text or a pair."""
    single = f"{start}:0 $A:0 {end}:0" if start is not None else f"$A:0 {end}:0"
    ids = [(token, backend.token_to_id(token)) for token in (start, end) if token is not None]
    template = processors.TemplateProcessing(
        single=single, pair=f"{single} $B:1 {end}:1", special_tokens=ids
    )
    has_spaces = not isinstance(backend.model, models.WordPiece)
    return processors.Sequence([_TRIM_OFFSETS] * has_spaces + [template])


def _training() -> ModuleType:
    """What trains tokenizers: a part of the installed package, and of no bundle."""
    return import_module("hf_roformer_lite.tokenizer_training")


__all__ = ["SPECIAL_TOKENS", "RoFormerLiteTokenizer"]
