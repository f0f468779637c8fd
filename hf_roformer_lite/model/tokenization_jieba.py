"""The tokenizer of RoFormer checkpoints: Jieba's words if the vocabulary has them, otherwise
characters and WordPiece."""

import os
import threading
from types import ModuleType
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from transformers import BatchEncoding
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from .hub import RemoteCodeTokenizer
from .tokenization_roformer_lite import (
    SPECIAL_TOKEN_OF,
    make_template,
    replaced_parts,
    wordpiece_backend,
)

SPACES_AROUND_CHINESE = normalizers.BertNormalizer(
    clean_text=False,
    handle_chinese_chars=True,
    strip_accents=False,
    lowercase=False,
)

# A thread that changes a backend holds Python's own lock while it waits for the calls that use the
# backend, and these wait for Python's lock to call Jieba. To prevent this deadlock, only one thread
# at a time may do either. No process may fork meanwhile, because its copy of the lock would stay
# locked.
jieba_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=jieba_lock.acquire,
        after_in_parent=jieba_lock.release,
        after_in_child=jieba_lock.release,
    )


class RoFormerLiteJiebaTokenizer(RemoteCodeTokenizer, TokenizersBackend):
    """
    Opens the directories of HF's `RoFormerTokenizer` and `RoFormerTokenizerFast` (RoFormer, Su et
    al. 2021, a word-based Chinese model). It returns the ids and offsets of an HF tokenizer that
    was constructed from the same vocabulary. It needs the package rjieba.

    **Splitting.** The text is cleaned and lower-cased as in BERT, and segmented by Jieba without
    its hidden Markov model. A word of the vocabulary is one token. Any other word is split around
    its Chinese characters, and WordPiece does the rest.

    **Storage.** `tokenizer.json` names the pre-tokenizer of BERT, as HF's does, because the format
    cannot hold a call of Jieba.

    Args:
        vocab: The id of each token, or the path of a `vocab.txt` with one token a line.
        do_lower_case: Whether text is lower-cased.
        strip_accents: Whether accents are removed. `None` stands for the value of `do_lower_case`.
        pad_token, unk_token, cls_token, sep_token, mask_token: Special tokens other than `[PAD]`,
            `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.

    Raises:
        ImportError: if rjieba is not installed.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
    model: Any = models.WordPiece

    def __init__(
        self,
        vocab: dict[str, int] | str | os.PathLike,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        **kwargs: Any,
    ):
        require_rjieba()
        kwargs = {**SPECIAL_TOKEN_OF, **kwargs}
        if not isinstance(vocab, dict):
            vocab = models.WordPiece.read_file(os.fspath(vocab))
        backend = wordpiece_backend(
            vocab,
            str(kwargs["unk_token"]),
            handle_chinese_chars=False,
            strip_accents=strip_accents,
            lowercase=do_lower_case,
        )
        super().__init__(
            tokenizer_object=backend,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            **kwargs,
        )

    def update_post_processor(self) -> None:
        """Make the template `[CLS] x [SEP]`, and `[CLS] a [SEP] b [SEP]` for pairs, with token
        types 0 and 1."""
        self.backend_tokenizer.post_processor = make_template(
            self.backend_tokenizer, start=self.cls_token, end=self.sep_token
        )

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str]:
        """Write `vocab.txt`, without added tokens, and return its path."""
        model = self.backend_tokenizer.model
        (path,) = model.save(os.fspath(save_directory), filename_prefix)
        return (path,)

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> "RoFormerLiteJiebaTokenizer":
        """Raise `NotImplementedError`, because the trainers of `tokenizers` cannot call Jieba."""
        raise NotImplementedError(
            f"{type(self).__name__} is made from a vocabulary; it cannot be trained"
        )

    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        # All ways of encoding call this private method of transformers, and no public one. A
        # backend with Jieba inside could not be pickled, copied or saved, so it has Jieba only
        # during this call.
        with jieba_lock:
            words = pre_tokenizers.PreTokenizer.custom(JiebaWords(self))
            with replaced_parts(self.backend_tokenizer, pre_tokenizer=words):
                return super()._encode_plus(*args, **kwargs)


class JiebaWords:
    """A pre-tokenizer that keeps the words of the vocabulary whole, and splits others around their
    Chinese characters."""

    def __init__(self, tokenizer: RoFormerLiteJiebaTokenizer):
        self.cut = require_rjieba().cut
        self.id_of = tokenizer.backend_tokenizer.model.token_to_id

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        """Split all parts of the text, which added tokens may have divided. The backend calls
        this."""
        text.split(lambda index, part: self.split(part))

    def split(self, text: tokenizers.NormalizedString) -> list[Any]:
        """The words of one part of the text, as strings that keep their offsets."""
        words = []
        start_of_word = 0
        for word in self.cut(str(text), False):
            start = start_of_word
            for piece in self.pieces(word):
                end = start + len(piece)
                words.append(text[start:end])
                start = end
            start_of_word += len(word)
        return words

    def pieces(self, word: str) -> list[str]:
        """The word itself if the vocabulary has it, otherwise its parts around Chinese characters.
        White space has no parts."""
        if self.id_of(word) is not None:
            return [word]
        return SPACES_AROUND_CHINESE.normalize_str(word).split()


def require_rjieba() -> ModuleType:
    """Import rjieba.

    Raises:
        ImportError: if it is not installed, with the command that installs it.
    """
    try:
        import rjieba
    except ImportError as error:
        raise ImportError(
            "RoFormerLiteJiebaTokenizer needs rjieba; install it with `pip install rjieba`"
        ) from error
    return rjieba
