"""Scores of the n-grams of a text, which a classifier adds to its logits.

On a few thousand short texts a linear model of n-grams is hard to beat (Wang & Manning 2012, ACL;
Joulin et al. 2017, EACL), and its errors differ from those of an encoder.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .heads_roformer_lite import TEXT_SCORES
from .modeling_roformer_lite import number_tokens
from .words_of_tokens import (
    BYTE_KINDS,
    INNER,
    Words,
    hash_pairs,
    hash_substrings,
    indices_where,
    seeded,
    shifted,
)

# Lengths in bytes.
NGRAM_LENGTHS = (2, 3, 4, 5)
AFFIX_LENGTHS = (1, 2, 3, 4)
# These numbers make the hashes of different kinds of n-grams differ.
PREFIX_SEED = 10
SUFFIX_SEED = 20
TRIPLE_SEED = 30


def indices_in(sorted_values: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The number of entries of `sorted_values` `(F,)` that are smaller than each of `values`.

    Exporters compile `searchsorted` into a comparison of every pair. Traced graphs use bisection
    instead, which compares each value with only 17 of 131,072 entries.
    """
    if not is_tracing(values):
        return torch.searchsorted(sorted_values, values)
    size = sorted_values.shape[0]
    indices = torch.zeros_like(values)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = indices + step
        last = further.clamp(max=size) - 1
        is_further = (further <= size) & (sorted_values[last] < values)
        indices = torch.where(is_further, further, indices)
        step //= 2
    return indices


class RoFormerLiteTextScores(nn.Module):
    """A table of `config.classifier_text_features` features of the text, with a row of scores for
    each.

    Features are identified by a hash of 31 bits. All scores are initialised to 0. They can be
    fitted separately from the model, as `roformer-lite train` does, and also receive gradients.
    """

    hashes: torch.Tensor
    token_bytes: torch.Tensor

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        num_features = config.classifier_text_features
        self.weight = nn.Parameter(torch.zeros(num_features, num_labels))
        self.bias = nn.Parameter(torch.zeros(num_labels))
        # The hashes are sorted.
        self.register_buffer("hashes", torch.arange(num_features))
        token_bytes = torch.zeros(
            config.vocab_size, config.classifier_token_bytes, dtype=torch.uint8
        )
        self.register_buffer("token_bytes", token_bytes)

    def initialize_own_weights(self, std: float) -> None:
        """Initialise the tensors that a checkpoint lacks, so that no text has a score."""
        init.zeros_(self.weight)
        init.zeros_(self.bias)
        init.zeros_(self.token_bytes)
        init.copy_(self.hashes, torch.arange(self.hashes.shape[0]))

    def set_token_bytes(self, token_bytes: torch.Tensor) -> None:
        """Set the text of the tokens, `(tokens, width)`. The tokens of the vocabulary beyond these
        have no text."""
        num_tokens = self.token_bytes.shape[0]
        self.token_bytes = token_bytes.to(self.token_bytes.device)
        self.resize_vocabulary(num_tokens)

    def resize_vocabulary(self, size: int) -> None:
        """Change the number of tokens to `size`. New tokens have no bytes and hence no text."""
        num_new_tokens = size - self.token_bytes.shape[0]
        self.token_bytes = F.pad(self.token_bytes, (0, 0, 0, num_new_tokens))

    def forward(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the scores of the text to the logits.

        Args:
            logits: `(documents, num_labels)` or `(N, num_labels)`.
            token_ids: The real tokens, `(N,)`.
            documents: The document of each token, `(N,)`, ascending.

        Returns:
            The logits for the loss and the logits of the output, which differ for a tagger that
            decodes. Both have the shape of `logits`.
        """
        raise NotImplementedError

    def of_batch(
        self,
        logits: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        documents: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the scores of the text to the logits of a batch `(B, L)`; see `forward`.

        Args:
            logits: `(documents, num_labels)` or `(B, L, num_labels)`. The logits of padding do not
                change.
            input_ids: `(B, L)`.
            attention_mask: See `number_tokens`.
            documents: See `number_tokens`.

        Raises:
            ValueError: without `input_ids`, from which the text is read.
        """
        if input_ids is None:
            raise ValueError(
                "inputs_embeds: classifier_text_features reads the text; give input_ids instead."
            )
        numbers = number_tokens(input_ids, attention_mask, documents).flatten()
        indices = indices_where(numbers)  # (N,)
        token_ids = input_ids.flatten()[indices]
        documents = numbers[indices] - 1
        if logits.ndim == 2:
            return self(logits, token_ids, documents)

        flat_logits = logits.flatten(0, 1)
        joint, output = self(flat_logits[indices], token_ids, documents)
        # Under autocast the logits are in half precision, and the scores are not.
        flat_logits = flat_logits.to(joint.dtype)
        # Exporters do not support `index_copy` with a size that depends on the data.
        index = indices[:, None].expand_as(joint)
        joint = flat_logits.scatter(0, index, joint)
        output = flat_logits.scatter(0, index, output)
        return joint.view_as(logits), output.view_as(logits)

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        """The features of the text, whether the table contains them or not.

        Returns:
            The hash of each occurrence of a feature, and the number of the document or token that
            owns it, each `(occurrences,)`.
        """
        raise NotImplementedError

    def words_of(self, token_ids: torch.Tensor, documents: torch.Tensor) -> Words:
        """The words of the tokens `(N,)`; see `Words.of_tokens`."""
        return Words.of_tokens(self.token_bytes, token_ids, documents)

    def score(self, words: Words, num_owners: int) -> torch.Tensor:
        """The bias and the weighted sum of the scores of all features of each owner, `(num_owners,
        num_labels)`. A feature that occurs several times is added once."""
        num_features = self.hashes.shape[0]
        if num_features == 0:
            return self.bias.expand(num_owners, -1)

        keys, owners = self.find_features(words)
        indices = indices_in(self.hashes, keys)
        indices = indices.clamp(max=num_features - 1)
        known = indices_where(self.hashes[indices] == keys)
        occurrences = owners[known] * num_features + indices[known]
        found, counts = torch.unique(occurrences, return_counts=True)  # (F,)
        rows = found % num_features
        owners = found // num_features  # (F,), ascending because `found` is sorted

        weights = self.weigh(rows, counts, owners, num_owners)
        if is_tracing(rows):
            # Exporters do not support `embedding_bag`.
            scores = self.weight[rows] * weights[:, None]  # (F, num_labels)
            sums = scores.new_zeros(num_owners, scores.shape[1])
            sums = sums.index_add(0, owners, scores)
        else:
            numbers = torch.arange(num_owners, device=owners.device)
            sums = F.embedding_bag(
                input=rows,
                weight=self.weight,
                offsets=torch.searchsorted(owners, numbers),
                mode="sum",
                per_sample_weights=weights,
            )
        return sums + self.bias

    def weigh(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        owners: torch.Tensor,
        num_owners: int,
    ) -> torch.Tensor:
        """The weight of each feature of each owner, `(F,)`.

        Args:
            rows: The row of the feature in the table, `(F,)`.
            counts: How often the feature occurs, `(F,)`.
            owners: The owner of the feature, `(F,)`, ascending.
            num_owners: The number of owners, including those without features.
        """
        return torch.ones_like(rows, dtype=self.weight.dtype)


class RoFormerLiteDocumentScores(RoFormerLiteTextScores):
    """Scores of the n-grams of a document, which are added to the logits of a classifier.

    The n-grams are sequences of one to three words and, for words of two bytes or more, substrings
    of 2 to 5 bytes and the first and last 1 to 4 bytes. ASCII letters are read in lower case. The
    weight of an n-gram is its `rarity`; with `config.classifier_text_counts` it is multiplied by 1
    plus the logarithm of the number of occurrences. The weights of a document are then divided by
    their Euclidean norm.
    """

    rarity: torch.Tensor

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.counts_repeated = config.classifier_text_counts
        self.register_buffer("rarity", torch.ones(config.classifier_text_features))

    def initialize_own_weights(self, std: float) -> None:
        super().initialize_own_weights(std)
        init.ones_(self.rarity)

    def forward(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.words_of(token_ids, documents)
        joint = logits + self.score(words, num_owners=logits.shape[0])
        return joint, joint

    def weigh(
        self,
        rows: torch.Tensor,
        counts: torch.Tensor,
        owners: torch.Tensor,
        num_owners: int,
    ) -> torch.Tensor:
        # This is computed in float32, because a sum of many squares in bfloat16 stops growing.
        weights = self.rarity[rows].float()
        if self.counts_repeated:
            weights = weights * (1 + counts.to(weights.dtype).log())
        square_sums = weights.new_zeros(num_owners)
        square_sums = square_sums.index_add(0, owners, weights.square())
        weights = weights / square_sums.sqrt()[owners]
        return weights.to(self.rarity.dtype)

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        keys, owners = zip(*self.find_ngrams(words), strict=True)
        return torch.cat(keys), torch.cat(owners)

    def find_ngrams(self, words: Words) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The hashes of the n-grams and their documents in four groups: one or two words, three
        words, parts of words of several characters, parts of words of one character."""
        text = words.lower()  # (S,)
        hashes = words.hash_words(text)  # (W,)
        documents = words.documents  # (W,)
        next_documents = shifted(documents, distance=1, fill=-1)
        pairs = indices_where(documents == next_documents)
        next_documents = shifted(documents, distance=2, fill=-1)
        triples = indices_where(documents == next_documents)
        of_pairs = hash_pairs(hashes[pairs], hashes[pairs + 1])
        of_triples = hash_pairs(hashes[triples], hashes[triples + 1])
        of_triples = hash_pairs(of_triples, hashes[triples + 2])
        short_ngrams = torch.cat([hashes, of_pairs])
        short_documents = torch.cat([documents, documents[pairs]])
        return [
            (short_ngrams, short_documents),
            (seeded(of_triples, TRIPLE_SEED), documents[triples]),
            *self._find_parts_of_words(words, text),
        ]

    def _find_parts_of_words(
        self,
        words: Words,
        text: torch.Tensor,
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The last two groups of `find_ngrams`. `text` `(S,)` is in lower case."""
        keys_by_kind = []
        words_by_kind = []
        is_long = (words.sizes > 1)[words.word_of_byte]  # (S,)
        bytes_before = words.bytes_before  # (S,)
        bytes_left = words.bytes_left  # (S,)
        substrings = hash_substrings(text, max_length=max(NGRAM_LENGTHS))
        for length, hashes in enumerate(substrings, start=1):
            fits = bytes_left >= length
            condition_of_seed = {}
            if length in NGRAM_LENGTHS:
                condition_of_seed[length] = fits
            if length in AFFIX_LENGTHS:
                condition_of_seed[PREFIX_SEED + length] = fits & (bytes_before == 0)
                condition_of_seed[SUFFIX_SEED + length] = bytes_left == length
            for seed, condition in condition_of_seed.items():
                indices = indices_where(is_long & condition)
                keys_by_kind.append(seeded(hashes, seed)[indices])
                words_by_kind.append(words.word_of_byte[indices])
        keys = torch.cat(keys_by_kind)
        word_of_key = torch.cat(words_by_kind)

        is_lead = BYTE_KINDS.to(text.device)[text] != INNER
        num_characters = torch.zeros_like(words.starts)
        num_characters = num_characters.index_add(0, words.word_of_byte, is_lead.long())
        has_several = (num_characters > 1)[word_of_key]
        groups = []
        for is_in_group in (has_several, ~has_several):
            indices = indices_where(is_in_group)
            groups.append((keys[indices], words.documents[word_of_key[indices]]))
        return groups


TEXT_SCORES["document"] = RoFormerLiteDocumentScores
