"""Tokenizer of RoFormer-Lite: byte-level BPE or Unigram with byte fallback, both lossless, or BERT's WordPiece."""

from .remote_code import RemoteCodeTokenizer

# isort: split
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend
from transformers.utils import logging

from .tokenization_long_words import cut_long_words
from .tokenization_texts import not_empty, read_texts
from .tokenization_unigram import train_unigram, with_whole_words

logger = logging.get_logger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALGORITHMS = ("bpe", "unigram", "wordpiece")
_ROLES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
_ROLES |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}

# Scripts written without spaces; the last two are the long-vowel signs, whose script property is Common.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\x{30FC}\x{FF70}"
_SPACED_LETTER = rf"[\p{{L}}\p{{M}}&&[^{_UNSPACED}]]"
# No token crosses the border of two of these: an English contraction, a run of Chinese (or of another script without
# spaces), a word with the space before it, one digit, a run of punctuation and symbols, line ends, other white space.
_SPLIT_PATTERN = (
    r"(?i:['’](?:[sdmt]|ll|ve|re)(?!\p{L}))"
    rf"|[{_UNSPACED}][{_UNSPACED}\p{{M}}]*"
    rf"| ?{_SPACED_LETTER}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s"
)
# Puts a space before a word of spaced script and before nothing else (see the class, "Text split into words").
_SPACE_BEFORE_WORD = normalizers.Sequence(
    [normalizers.Prepend(" "), normalizers.Replace(Regex(rf"\A (?!{_SPACED_LETTER})"), "")]
)
# Cuts the spaces that pieces begin with from their offsets.
_TRIM_OFFSETS = processors.ByteLevel(trim_offsets=True)


class RoFormerLiteTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    Fast tokenizer that its `tokenizer.json` describes completely: `PreTrainedTokenizerFast` reads the same file and
    gives the same ids for plain text. Make one with `RoFormerLiteTokenizer.train`, or load one with `from_pretrained`.

    **Template.** `[CLS] x [SEP]`, and `[CLS] a [SEP] b [SEP]` for pairs (token types 0 and 1). `bos_token` is `[CLS]`
    and `eos_token` is `[SEP]`, so an encoder–decoder starts with `[CLS]` and ends with `[SEP]`. Prompts of a causal
    language model must not end with `[SEP]`: with `tokenizer.add_bos_token = True` the template is `[CLS] x`, also
    when saved; `add_eos_token = True` alone gives `x [SEP]`, and with both off, as they are at first, the template is
    the one above. Both are read from the template in `tokenizer.json`.

    **Labels.** `tokenizer(text_target=y)`, and the `labels` of `tokenizer(x, text_target=y)`, are `y [SEP]`: exactly
    what a decoder that starts with `[CLS]` has to predict. `decoder_input_ids` are therefore the labels moved to the
    right by one, with `[CLS]` in front. `max_length` and `max_target_length` count the `[SEP]`.

    **Lossless.** With BPE and Unigram, `decode(encode(text), skip_special_tokens=True) == text` for any string that
    UTF-8 can hold. A literal `[SEP]` in the text is the special token, as everywhere in transformers, unless
    `split_special_tokens=True`. A lone surrogate is no Unicode text: encoding it raises `TypeError`.

    **Text split into words** (`is_split_into_words=True`). With BPE and Unigram, a word that begins with a letter of a
    script written with spaces is encoded as within a sentence, with the space before it; Chinese, digits and
    punctuation get none. Offsets count from the start of each word. For Chinese labelled character by character
    take WordPiece, the only one whose tokens never span two Chinese characters. `word_ids()` of running text number
    the same words for BPE and Unigram; a `PreTrainedTokenizerFast` on a Unigram file counts each character without a
    piece as a word.

    `token_type_ids` are not among `model_input_names` (`generate` of an encoder–decoder refuses them); ask with
    `return_token_type_ids=True`. Encoding labels or split words replaces parts of the backend during the call: as with
    the padding and truncation of every fast tokenizer, use one instance in one thread at a time.

    Args:
        tokenizer_file: path of a `tokenizer.json`, taken as it is.
        tokenizer_object: the same as a `tokenizers.Tokenizer`. One of the two is required (`ValueError`).
        pad_token, unk_token, cls_token, sep_token, mask_token, bos_token, eos_token: other special tokens.
        model_max_length: longest sequence in tokens, for `truncation=True` and the warning about long text.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, *, model_max_length: int = 512, **kwargs: Any):
        # tokenizer.json holds the added tokens; a second list would bring back the names that retraining has changed.
        kwargs.pop("added_tokens_decoder", None)
        super().__init__(model_max_length=model_max_length, **{**_ROLES, **kwargs})
        flags = [self.init_kwargs.pop(flag, None) for flag in ("add_bos_token", "add_eos_token")]
        if flags == [None, None]:  # else the base class has made the template that they ask for
            self._add_bos_token, self._add_eos_token = self._flags_of_template()

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Hands `tokenizer.json` to `__init__`; the base class would rebuild the pipeline from the vocabulary."""
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

        * `"bpe"` — pieces of UTF-8 bytes (Sennrich et al. 2016 on bytes, as GPT-2); never gives [UNK].
        * `"unigram"` — pieces of characters (Kudo 2018); a character without a piece is written as one `<0x..>` token
          for each of its UTF-8 bytes; never gives [UNK]. Spaces stay spaces and nothing is normalised. Characters seen
          less than `min_frequency` times, or in the rarest 0.05 % of the text, get no piece of their own.
        * `"wordpiece"` — BERT's (Devlin et al. 2019): control characters removed, Chinese characters apart, optionally
          lower case and without accents. Not lossless, and unknown characters are [UNK].

        Training takes quadratic time in the length of a word. A longer run than 256 characters of one kind (letters
        without a space, punctuation, white space) is therefore learned from in parts of 256, as if they were words of
        their own. The tokenizer itself splits no such run: this concerns only what it can learn.

        Args:
            source: the path of a UTF-8 text file (`.gz` is unpacked) read line by line, a list of such paths, or any
                iterable of texts. A list is taken for paths if its first item is a path object, names a file, or ends
                in .txt or .gz.
            vocab_size: upper bound on the entries, special tokens and bytes included.
            min_frequency: pairs seen less often are not merged (bpe, wordpiece); see above for unigram.
            lowercase, strip_accents: wordpiece only; lower case by default, accents as `lowercase`.
            model_max_length: see the class.
            trainer_options: further arguments of the trainer in `tokenizers`, as `limit_alphabet` (bpe, wordpiece).

        Raises:
            ValueError: unknown algorithm, `lowercase` or `strip_accents` with a lossless algorithm, a source without
                text, a line that is not UTF-8 (its file and number are named), `vocab_size` below the alphabet.
            FileNotFoundError, TypeError: a path that is no file, an item of the source that is no string.
        """
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm={algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}")
        if algorithm != "wordpiece" and (lowercase or strip_accents):
            raise ValueError(f"{lowercase=}, {strip_accents=}: {algorithm} is lossless; only wordpiece can do that")
        backend = _untrained_backend(algorithm, lowercase is not False, strip_accents)
        untrained = cls(tokenizer_object=backend, model_max_length=model_max_length)
        options = {"min_frequency": min_frequency, "show_progress": show_progress, **trainer_options}
        trained = untrained._trained(read_texts(source), vocab_size, **options)
        if trained.vocab_size > vocab_size:
            raise ValueError(_too_small(vocab_size, trained.vocab_size))
        return trained

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
        Trains a tokenizer of the same kind, with the same special tokens and settings, on other text: an iterable of
        texts or of lists of texts. The arguments are those of the base class, `min_frequency` that of `train`, and
        `kwargs` go to the trainer in `tokenizers`. As with the stock tokenizers the vocabulary is larger than
        `vocab_size` when the alphabet alone is; a warning says so.
        """
        kwargs |= {"new_special_tokens": new_special_tokens, "special_tokens_map": special_tokens_map}
        new = self._trained(text_iterator, vocab_size, length=length, min_frequency=min_frequency, **kwargs)
        if new.vocab_size > vocab_size:
            logger.warning(_too_small(vocab_size, new.vocab_size))
        return new

    def _trained(
        self,
        text_iterator: Iterable[str] | Iterable[list[str]],
        vocab_size: int,
        length: int | None = None,
        min_frequency: int = 2,
        new_special_tokens: list[Any] | None = None,
        special_tokens_map: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> "RoFormerLiteTokenizer":
        """A tokenizer of the same kind with `vocab_size` entries, or more when the alphabet takes more."""
        texts = cut_long_words(not_empty(text_iterator), self._tokenizer)
        names = {"new_special_tokens": new_special_tokens, "special_tokens_map": special_tokens_map}
        if isinstance(self._tokenizer.model, models.Unigram):
            # The special tokens are arranged as for the others, on a throwaway text; then the pieces are replaced.
            new = super().train_new_from_iterator(["a"], vocab_size, show_progress=False, **names)
            train_unigram(new, texts, vocab_size, min_frequency, **kwargs)
        else:
            kwargs |= {"min_frequency": min_frequency, **names}
            new = super().train_new_from_iterator(texts, vocab_size, length, **kwargs)
        new._add_bos_token, new._add_eos_token = self.add_bos_token, self.add_eos_token
        new._tokenizer.post_processor = new._template()  # with the new ids
        new.update_post_processor()
        return new

    def __call__(
        self, text=None, text_pair=None, text_target=None, text_pair_target=None, *args: Any, **kwargs: Any
    ) -> BatchEncoding:
        """As in every tokenizer of transformers; `text_target` gives labels without a leading `[CLS]`."""
        if text_target is None:
            return super().__call__(text, text_pair, None, None, *args, **kwargs)
        inputs = None if text is None else super().__call__(text, text_pair, None, None, *args, **kwargs)
        with self._replaced(post_processor=self._template(start=False)):
            target = super().__call__(None, None, text_target, text_pair_target, *args, **kwargs)
        if inputs is None:
            return target
        inputs["labels"] = target["input_ids"]
        return inputs

    def _encode_plus(
        self, text: Any, text_pair: Any = None, *args: Any, is_split_into_words: bool = False, **kwargs: Any
    ) -> BatchEncoding:
        spaced = is_split_into_words and not isinstance(self._tokenizer.model, models.WordPiece)
        with self._replaced(**({"normalizer": _SPACE_BEFORE_WORD} if spaced else {})):
            encoded = super()._encode_plus(text, text_pair, *args, is_split_into_words=is_split_into_words, **kwargs)
        if encoded.encodings and not is_split_into_words and isinstance(self._tokenizer.model, models.Unigram):
            self._number_whole_words(encoded, text, text_pair)
        return encoded

    def _number_whole_words(self, encoded: BatchEncoding, text: Any, text_pair: Any) -> None:
        """Gives the encodings of a batch, or of a single text, the numbers of whole words."""
        texts, pairs = (text, text_pair) if isinstance(text, list | tuple) else ([text], text_pair and [text_pair])
        samples = zip(texts, pairs, strict=True) if pairs else [[x] if isinstance(x, str) else x for x in texts]
        rows = encoded.get("overflow_to_sample_mapping")
        rows = range(len(encoded.encodings)) if rows is None else [int(row) for row in rows]
        for number, sample in enumerate(samples):
            places = slice(bisect_left(rows, number), bisect_right(rows, number))
            encoded.encodings[places] = with_whole_words(self._tokenizer, list(sample), encoded.encodings[places])

    @contextmanager
    def _replaced(self, **parts: Any) -> Iterator[None]:
        """Replaces parts of the backend, and puts the old ones back whatever happens in between."""
        before = {name: getattr(self._tokenizer, name) for name in parts}
        try:
            for name, part in parts.items():
                setattr(self._tokenizer, name, part)
            yield
        finally:
            for name, part in before.items():
                setattr(self._tokenizer, name, part)

    def update_post_processor(self) -> None:
        """Called when `add_bos_token` or `add_eos_token` is set; see the class, "Template"."""
        if self.add_bos_token or self.add_eos_token:
            super().update_post_processor()
            if not isinstance(self._tokenizer.model, models.WordPiece):
                self._tokenizer.post_processor = processors.Sequence([_TRIM_OFFSETS, self._tokenizer.post_processor])
        elif self._tokenizer.post_processor is None:
            super().update_post_processor()  # a `tokenizer.json` of others, without a template, is taken as it is
        else:
            self._tokenizer.post_processor = self._template()

    def _flags_of_template(self) -> tuple[bool, bool]:
        """`add_bos_token` and `add_eos_token` of the template in `tokenizer.json`."""
        if self._tokenizer.post_processor is None:
            return False, False
        state = json.loads(self._tokenizer.post_processor.__getstate__())
        for part in state.get("processors", [state]):
            single, pair = (
                [next(iter(item.values()))["id"] for item in part.get(name, [])] for name in ("single", "pair")
            )
            if single:
                flags = single[0] == self.bos_token, single[-1] == self.eos_token
                is_set = not all(flags) or pair.count(self.bos_token) == 2  # else the template of the class
                return flags if is_set else (False, False)
        return False, False

    def _template(self, start: bool = True) -> processors.Sequence:
        return _template(self._tokenizer, self.cls_token if start else None, self.sep_token)


def _template(backend: Tokenizer, start: str | None, end: str) -> processors.Sequence:
    """The special tokens around a text or a pair."""
    single = f"{start}:0 $A:0 {end}:0" if start is not None else f"$A:0 {end}:0"
    ids = [(token, backend.token_to_id(token)) for token in (start, end) if token is not None]
    template = processors.TemplateProcessing(single=single, pair=f"{single} $B:1 {end}:1", special_tokens=ids)
    has_spaces = not isinstance(backend.model, models.WordPiece)
    return processors.Sequence([_TRIM_OFFSETS] * has_spaces + [template])


def _untrained_backend(algorithm: str, lowercase: bool, strip_accents: bool | None) -> Tokenizer:
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
        backend.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = _template(backend, "[CLS]", "[SEP]")
    return backend


def _too_small(vocab_size: int, needed: int) -> str:
    return f"vocab_size={vocab_size} is too small: special tokens and the alphabet of this text take {needed} entries"
