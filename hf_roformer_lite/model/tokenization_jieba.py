"""Tokenizer of RoFormer checkpoints: Jieba's words where the vocabulary has them, else characters
and WordPiece."""

import os
import threading
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from .configuration_roformer_lite import RemoteCodeTokenizer
from .tokenization_roformer_lite import SPECIAL_TOKENS

_AROUND_CHINESE = normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
)

# Whoever changes a backend waits, holding Python's own lock, for the calls that use it; these wait
# for Python's lock to call Jieba. So only one thread at a time may do either. No fork may happen
# meanwhile: its lock would stay shut.
_one_at_a_time = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_one_at_a_time.acquire,
        after_in_parent=_one_at_a_time.release,
        after_in_child=_one_at_a_time.release,
    )


class RoFormerLiteJiebaTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    Opens the directories of HF's `RoFormerTokenizer` and `RoFormerTokenizerFast` (RoFormer, Su et
    al. 2021: a Chinese model of words) and gives the ids and offsets of an HF tokenizer constructed
    from the same vocabulary. Needs the package rjieba.

    **Splitting.** The text is cleaned and lower-cased as BERT does, and cut by Jieba, without its
    hidden Markov model. A word of the vocabulary is one token. Any other is cut around its Chinese
    characters, and WordPiece does the rest.

    **Storage.** `tokenizer.json` names BERT's pre-tokenizer, as HF's does: the format cannot hold a
    call of Jieba.

    Args:
        vocab: token to id, or the path of a `vocab.txt` with one token a line.
        do_lower_case: lower case, and no accents unless `strip_accents` says otherwise.
        strip_accents: whether accents go; `None` is the value of `do_lower_case`.
        pad_token, unk_token, cls_token, sep_token, mask_token: special tokens other than `[PAD]`
            and so on.

    Raises:
        ImportError: rjieba is not installed.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model = models.WordPiece

    def __init__(
        self,
        vocab: dict[str, int] | str | os.PathLike,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ):
        require_rjieba()
        kwargs = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS} | kwargs
        if not isinstance(vocab, dict):
            vocab = models.WordPiece.read_file(os.fspath(vocab))
        backend = Tokenizer(models.WordPiece(vocab, unk_token=str(kwargs["unk_token"])))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=False,
            strip_accents=strip_accents,
            lowercase=do_lower_case,
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        super().__init__(
            tokenizer_object=backend,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            **kwargs,
        )
        self.update_post_processor()

    def update_post_processor(self) -> None:
        """`[CLS] x [SEP]`, and `[CLS] a [SEP] b [SEP]` for pairs (token types 0 and 1)."""
        single = f"{self.cls_token}:0 $A:0 {self.sep_token}:0"
        self.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=single,
            pair=f"{single} $B:1 {self.sep_token}:1",
            special_tokens=[
                (self.cls_token, self.cls_token_id),
                (self.sep_token, self.sep_token_id),
            ],
        )

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Writes `vocab.txt`, without added tokens, and returns its path."""
        return tuple(self.backend_tokenizer.model.save(os.fspath(save_directory), filename_prefix))

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> "RoFormerLiteJiebaTokenizer":
        """Raises `NotImplementedError`: the trainers of `tokenizers` cannot call Jieba."""
        raise NotImplementedError(
            f"{type(self).__name__} is made from a vocabulary; it cannot be trained"
        )

    # A private name of transformers, for the reason beside that of RoFormerLiteTokenizer.
    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        # With Jieba inside, the backend could not be pickled, copied or saved: it is lent for this
        # call only.
        with _one_at_a_time:
            before = self.backend_tokenizer.pre_tokenizer
            self.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(
                _JiebaWords(self)
            )
            try:
                return super()._encode_plus(*args, **kwargs)
            finally:
                self.backend_tokenizer.pre_tokenizer = before


class _JiebaWords:
    """A pre-tokenizer: words of the vocabulary whole, others cut around their Chinese
    characters."""

    def __init__(self, tokenizer: RoFormerLiteJiebaTokenizer):
        self._cut = require_rjieba().cut
        self._id_of = tokenizer.backend_tokenizer.model.token_to_id

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Called by the backend; cuts all parts of the text, which added tokens may have
        divided."""
        text.split(lambda _, part: self._split(part))

    def _split(self, text: tokenizers.NormalizedString) -> list[tokenizers.NormalizedString]:
        parts, position = [], 0
        for word in self._cut(str(text), False):
            known = self._id_of(word) is not None
            # none of white space
            pieces = [word] if known else _AROUND_CHINESE.normalize_str(word).split()
            ends = accumulate(map(len, pieces), initial=position)
            parts += [text[start:end] for start, end in pairwise(ends)]
            position += len(word)
        return parts


def require_rjieba() -> ModuleType:
    try:
        import rjieba
    except ImportError as error:
        raise ImportError(
            'RoFormerLiteJiebaTokenizer needs rjieba, which is not installed: pip install "hf_roformer_lite[jieba]"'
        ) from error
    return rjieba


__all__ = ["RoFormerLiteJiebaTokenizer"]
