"""The tokenizer: byte-level BPE, which is lossless, or BERT's WordPiece."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from .hub import RemoteCodeTokenizer

# The special tokens in the order of their ids, from 0 on, by the names of their attributes.
SPECIAL_TOKEN_OF = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
SPECIAL_TOKENS = tuple(SPECIAL_TOKEN_OF.values())
ALGORITHMS = ("bpe", "wordpiece")
TEMPLATE_FLAGS = ("add_bos_token", "add_eos_token")

# Scripts that are written without spaces. The last two characters are the long-vowel signs, whose
# script in Unicode is Common.
UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
    r"\x{30FC}\x{FF70}"
)
SPACED_LETTER = rf"[\p{{L}}\p{{M}}&&[^{UNSPACED}]]"
# No token crosses the border between two of these: an English contraction, a run of Chinese (or of
# another script without spaces), a word with the space before it, one digit, a run of punctuation
# and symbols, line ends, other white space.
SPLIT_PATTERN = (
    r"(?i:['’](?:[sdmt]|ll|ve|re)(?!\p{L}))"
    rf"|[{UNSPACED}][{UNSPACED}\p{{M}}]*"
    rf"| ?{SPACED_LETTER}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s"
)
# Puts a space only before a word of a spaced script. The docstring of the class says why under
# "Text split into words".
SPACE_BEFORE_WORD = normalizers.Sequence(
    [
        normalizers.Prepend(" "),
        normalizers.Replace(Regex(rf"\A (?!{SPACED_LETTER})"), ""),
    ]
)
# Excludes the space that begins a piece from the offsets of the piece.
TRIM_OFFSETS = processors.ByteLevel(trim_offsets=True)
# The number of bytes (in WordPiece, of characters) after which a word is cut in training. No word
# of a natural language is this long, and a run of Chinese between two punctuation marks rarely is.
# Encoded images, protein sequences and rulers made of hyphens are.
MAX_WORD_LENGTH = 1024


class RoFormerLiteTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    A fast tokenizer that is completely described by its `tokenizer.json`: `PreTrainedTokenizerFast`
    reads the same file and returns the same ids for plain text. Make one with
    `RoFormerLiteTokenizer.train`, or load one with `from_pretrained`.

    **Template.** A text becomes `[CLS] x [SEP]`, and a pair `[CLS] a [SEP] b [SEP]` with token
    types 0 and 1. `bos_token` is `[CLS]` and `eos_token` is `[SEP]`, so an encoder–decoder starts
    with `[CLS]` and ends with `[SEP]`. Prompts of a causal language model must not end with
    `[SEP]`: with `tokenizer.add_bos_token = True` the template is `[CLS] x`, also after saving.
    With `add_eos_token = True` alone, the template is `x [SEP]`. By default both fields are off,
    and the template is `[CLS] x [SEP]`. Both fields are read from the template in `tokenizer.json`.

    **Labels.** `tokenizer(text_target=y)`, and the `labels` of `tokenizer(x, text_target=y)`, are
    `y [SEP]`, the tokens that a decoder has to predict after `[CLS]`. `decoder_input_ids` are
    therefore the labels moved to the right by one, with `[CLS]` in front. `max_length` and
    `max_target_length` count the `[SEP]`.

    **Lossless.** With BPE, `decode(encode(text), skip_special_tokens=True) == text` for any string
    that UTF-8 can hold. A literal `[SEP]` in the text is the special token, as everywhere in
    transformers, unless `split_special_tokens=True`. A lone surrogate is not Unicode text, and
    encoding it raises `TypeError`.

    **Text split into words** (`is_split_into_words=True`). With BPE, a word that begins with a
    letter of a script written with spaces is encoded as within a sentence, with the space before
    it. Chinese, digits and punctuation get no space. Offsets count from the start of each word. For
    Chinese that is labelled character by character, use WordPiece, the only algorithm whose tokens
    never span two Chinese characters.

    **Unigram.** Tokenizers of this kind, which version 0.1 trained, load and encode as before. They
    are lossless, and encode split words, like BPE. They cannot be trained on other text.

    **Limits.** `token_type_ids` are not among `model_input_names`, because `generate` of an
    encoder–decoder rejects them; request them with `return_token_type_ids=True`. Encoding labels or
    split words replaces parts of the backend during the call. As with the padding and truncation of
    every fast tokenizer, use one instance in one thread at a time.

    Args:
        tokenizer_file: The path of a `tokenizer.json`, which is used as it is.
        tokenizer_object: The same as a `tokenizers.Tokenizer`. Without either of the two, a
            `ValueError` is raised.
        pad_token, unk_token, cls_token, sep_token, mask_token, bos_token, eos_token: Special tokens
            other than the default ones.
        model_max_length: The length of the longest sequence in tokens, for `truncation=True` and
            for the warning about long text.
    """

    vocab_files_names = {"tokenizer_file": "tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]
    _encodes_target = False  # Whether the next text is a `text_target`.

    def __init__(self, *, model_max_length: int = 512, **kwargs: Any):
        # tokenizer.json holds the added tokens. A second list would bring back the names that
        # retraining has changed.
        kwargs.pop("added_tokens_decoder", None)
        tokens = {**SPECIAL_TOKEN_OF, "bos_token": "[CLS]", "eos_token": "[SEP]"}
        super().__init__(model_max_length=model_max_length, **{**tokens, **kwargs})
        given = [self.init_kwargs.pop(flag, None) for flag in TEMPLATE_FLAGS]
        if given != [None, None]:
            # The base class has already made the template for these flags.
            return
        of_file = self._flags_of_template()
        if any(of_file):
            for flag, value in zip(TEMPLATE_FLAGS, of_file, strict=True):
                # Setting a flag makes its template.
                setattr(self, flag, value)

    @classmethod
    def convert_to_native_format(
        cls, trust_remote_code: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Pass `tokenizer.json` on to `__init__`. The base class would rebuild the pipeline from
        the vocabulary."""
        return kwargs

    @classmethod
    def train(
        cls,
        source: Iterable[str] | Iterable[list[str]],
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
        Train a tokenizer. Ids 0 to 4 are `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`.

        * `"bpe"`: pieces of UTF-8 bytes (Sennrich et al. 2016, on bytes as in GPT-2). It never
          returns [UNK].
        * `"wordpiece"`: BERT's WordPiece (Devlin et al. 2019). Control characters are removed,
          Chinese characters are separated, and text is optionally lower-cased and stripped of
          accents. It is not lossless, and unknown characters are [UNK].

        Training takes quadratic time in the length of a word. In training, a run of more than 1,024
        bytes of one kind (letters without a space, punctuation, white space) is therefore cut into
        parts of 1,024 bytes (with wordpiece, characters), as if these were separate words. The
        tokenizer itself does not cut such runs: this only limits the pieces that it can learn.

        Args:
            source: An iterable of texts or of lists of texts, such as an open file.
            vocab_size: An upper bound on the number of entries, including special tokens and bytes.
            min_frequency: Pairs that occur less often are not merged.
            lowercase, strip_accents: Only for wordpiece. By default, text is lower-cased, and
                accents are removed if text is lower-cased.
            model_max_length: As in the class.
            trainer_options: Further arguments of the trainer in `tokenizers`, such as
                `limit_alphabet`.

        Raises:
            ValueError: for an unknown algorithm, `lowercase` or `strip_accents` with bpe, a source
                without text, or a `vocab_size` below the alphabet.
            TypeError: for a single string, or an item of the source that is not a string.
        """
        if algorithm not in ALGORITHMS:
            raise ValueError(
                f"algorithm={algorithm!r} is unknown; choose one of {', '.join(ALGORITHMS)}"
            )
        if algorithm != "wordpiece" and (lowercase or strip_accents):
            raise ValueError(
                f"{lowercase=}, {strip_accents=}: {algorithm} is lossless; "
                "choose algorithm='wordpiece' to change the text"
            )
        backend = untrained_backend(
            algorithm,
            lowercase=lowercase is not False,
            strip_accents=strip_accents,
        )
        untrained = cls(tokenizer_object=backend, model_max_length=model_max_length)
        return untrained.train_new_from_iterator(
            source,
            vocab_size,
            min_frequency=min_frequency,
            show_progress=show_progress,
            **trainer_options,
        )

    def train_new_from_iterator(
        self,
        text_iterator: Iterable[str] | Iterable[list[str]],
        vocab_size: int,
        *args: Any,
        min_frequency: int = 2,
        **kwargs: Any,
    ) -> "RoFormerLiteTokenizer":
        """
        Train a tokenizer of the same kind, with the same special tokens and settings, on other
        text.

        The arguments are the same as in the base class; `text_iterator` yields texts or lists of
        texts. `min_frequency` is the same as in `train`, and all other keywords go to the trainer
        in `tokenizers`.

        Raises:
            ValueError: for a Unigram tokenizer, a `text_iterator` without text, or a `vocab_size`
                below the alphabet.
            TypeError: as in `train`.
        """
        backend = self.backend_tokenizer
        if isinstance(backend.model, models.Unigram):
            raise ValueError(
                "a Unigram tokenizer of an earlier version cannot be trained on other text; train "
                "a new tokenizer with algorithm='bpe'"
            )
        splits = [backend.pre_tokenizer, pre_tokenizers.FixedLength(MAX_WORD_LENGTH)]
        if backend.pre_tokenizer is None:
            del splits[0]
        with replaced_parts(backend, pre_tokenizer=pre_tokenizers.Sequence(splits)):
            new = super().train_new_from_iterator(
                texts_of(text_iterator),
                vocab_size,
                *args,
                min_frequency=min_frequency,
                **kwargs,
            )
        new.backend_tokenizer.pre_tokenizer = backend.pre_tokenizer
        # The ids of the special tokens may have changed.
        new.backend_tokenizer.post_processor = new.template()
        new.add_bos_token = self.add_bos_token
        new.add_eos_token = self.add_eos_token
        if new.vocab_size > vocab_size:
            raise ValueError(
                f"vocab_size={vocab_size} is too small: special tokens and the alphabet of this "
                f"text take {new.vocab_size} entries"
            )
        return new

    def _switch_to_target_mode(self) -> None:
        # Transformers calls this method, if a class has it, before it encodes a `text_target`.
        self._encodes_target = True

    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        # All ways of encoding call this private method of transformers, and no public one.
        parts: dict[str, Any] = {}
        if self._encodes_target:
            self._encodes_target = False
            parts["post_processor"] = self.template(start=False)
        is_lossless = not isinstance(self.backend_tokenizer.model, models.WordPiece)
        if is_lossless and kwargs.get("is_split_into_words"):
            parts["normalizer"] = SPACE_BEFORE_WORD
        with replaced_parts(self.backend_tokenizer, **parts):
            return super()._encode_plus(*args, **kwargs)

    def update_post_processor(self) -> None:
        """Make the template for `add_bos_token` and `add_eos_token` when one of them is set. The
        docstring of the class describes it under "Template"."""
        backend = self.backend_tokenizer
        if self.add_bos_token or self.add_eos_token:
            super().update_post_processor()
            if not isinstance(backend.model, models.WordPiece):
                backend.post_processor = processors.Sequence(
                    [TRIM_OFFSETS, backend.post_processor],
                )
        elif backend.post_processor is None:
            # A `tokenizer.json` from elsewhere without a template is used as it is.
            super().update_post_processor()
        else:
            backend.post_processor = self.template()

    def _flags_of_template(self) -> tuple[bool, bool]:
        """`add_bos_token` and `add_eos_token`, according to the template in `tokenizer.json`."""
        post_processor = self.backend_tokenizer.post_processor
        if post_processor is None:
            return False, False
        empty = Tokenizer(models.BPE()).encode("")
        single = post_processor.process(empty).tokens
        pair = post_processor.process(empty, empty).tokens
        has_start = self.bos_token in single
        has_end = self.eos_token in single
        # The default template, with both flags off, has a start and an end as well. In pairs it has
        # one start instead of two. Any other template is used as it is.
        made = [self.bos_token] * has_start + [self.eos_token] * has_end
        if single != made or pair != [*made, *made]:
            return False, False
        return has_start, has_end

    def template(self, start: bool = True) -> processors.PostProcessor:
        """The special tokens around a text or a pair, with their current ids. Without `start` it is
        the template of labels."""
        return make_template(
            self.backend_tokenizer,
            start=self.cls_token if start else None,
            end=self.sep_token,
        )


@contextmanager
def replaced_parts(backend: Tokenizer, **parts: Any) -> Iterator[None]:
    """Replace parts of a backend, and put the old ones back even after an error."""
    before = {name: getattr(backend, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(backend, name, part)
        yield
    finally:
        for name, part in before.items():
            setattr(backend, name, part)


def untrained_backend(algorithm: str, lowercase: bool, strip_accents: bool | None) -> Tokenizer:
    """The pipeline of an algorithm, with only the special tokens in its vocabulary."""
    if algorithm == "bpe":
        backend = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        backend.decoder = decoders.ByteLevel()
    else:
        vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
        backend = wordpiece_backend(
            vocabulary, "[UNK]", strip_accents=strip_accents, lowercase=lowercase
        )
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.post_processor = make_template(backend, start="[CLS]", end="[SEP]")
    return backend


def wordpiece_backend(vocabulary: dict[str, int], unk_token: str, **options: Any) -> Tokenizer:
    """BERT's pipeline, without a template. The `options` are those of its normalizer."""
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token=unk_token))
    backend.normalizer = normalizers.BertNormalizer(**options)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def make_template(backend: Tokenizer, start: str | None, end: str) -> processors.PostProcessor:
    """The special tokens around a text or a pair. Labels have no `start`."""
    single = f"$A:0 {end}:0"
    special_tokens = [end]
    if start is not None:
        single = f"{start}:0 {single}"
        special_tokens.insert(0, start)
    template = processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B:1 {end}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in special_tokens],
    )
    if isinstance(backend.model, models.WordPiece):
        return template
    return processors.Sequence([TRIM_OFFSETS, template])


def texts_of(items: Iterable[str] | Iterable[list[str]]) -> Iterator[str]:
    """The non-blank texts of an iterable of texts or of lists of texts.

    Raises:
        ValueError: if there are none.
        TypeError: for a single string, and for an item that is not a string.
    """
    if isinstance(items, str):
        raise TypeError(
            f"{items[:50]!r} is one text; pass an iterable of texts, such as "
            'open("text.txt", encoding="utf-8")'
        )
    has_text = False
    for item in items:
        for text in item if isinstance(item, list | tuple) else [item]:
            if not isinstance(text, str):
                raise TypeError(
                    f"the source of texts holds {text!r}, a {type(text).__name__}, not a str"
                )
            if text.strip():
                has_text = True
                yield text
    if not has_text:
        raise ValueError("nothing to train on: the source holds no text")
