"""Scores of the text that a classifier or a tagger adds to its logits.

On a few thousand short texts a linear model of n-grams is hard to beat (Wang & Manning 2012, ACL;
Joulin et al. 2017, EACL), and its errors differ from those of an encoder. For taggers the same is
true of a conditional random field over the words, their shapes and their neighbours (Lafferty et
al. 2001, ICML). Both read the text from `input_ids`: the bytes of the tokens are joined and split
into words. Pipelines, servers and exported graphs therefore need no other input, and the features
do not depend on the tokenizer.

Only the code saved with models that use `classifier_text_features` or `decode_tags` contains this
file, and the `auto_map` of such a model looks up every class here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .heads_roformer_lite import *  # noqa: F401, F403
from .heads_roformer_lite import TEXT_SCORES
from .modeling_roformer_lite import document_numbers

# The table of tokens holds this many bytes of each token; the text of a longer token is cut.
LONGEST_TOKEN = 32
# Words that differ only after this many bytes may have the same hash.
MAX_WORD_BYTES = 48
# Special tokens consist of this byte, a blank that does not occur in texts.
SEPARATOR = 0x1F

# Lengths are in bytes, distances in words.
NGRAM_LENGTHS = (2, 3, 4, 5)
AFFIX_LENGTHS = (1, 2, 3, 4)
NEIGHBOUR_DISTANCES = (-2, -1, 1, 2)

# These numbers make the hashes of different kinds of features differ.
WORD_SEED = 1
LOWER_CASE_SEED = 2
SHAPE_SEED = 3
SHORT_WORD_SEED = 4
PREFIX_SEED = 10
SUFFIX_SEED = 20
TRIPLE_SEED = 30
NEIGHBOUR_SEED = 30
PAIR_SEED = 40

# Polynomial hashes are computed modulo this prime, so that the product of two of them fits into 64
# bits.
PRIME = 2**31 - 1
HASH_BASE = 1_000_003
SEED_BASE = 1_000_033

# Each word receives messages from this many neighbours on either side. Words at a greater distance
# have almost no influence on its tag.
NUM_MESSAGES = 16
# A transition with this score is forbidden.
IMPOSSIBLE = -50.0
# Outside of traced graphs at most this many scores of pairs of tags are in memory at once.
MAX_PAIRS = 2**18
# The better of two tags that should be almost equally good leads by twice this logit.
TINY_LOGIT = 1e-5

# A byte of UTF-8 text separates words (blank), begins a character of a longer word (letter), begins
# a character that is a word by itself (single), or continues a character (inner).
BLANK = 0
LETTER = 1
SINGLE = 2
INNER = 3


def make_byte_kinds() -> torch.Tensor:
    """The kind of each byte, `(256,)`.

    Beyond ASCII the first byte of a character determines its kind. Punctuation, symbols, kana and
    Han (U+0080 to U+00BF, U+2000 to U+9FFF, U+F000 and above) are words by themselves, and all
    other characters are letters.
    """
    kinds = torch.full((256,), LETTER)
    for byte in range(0x80):
        if not chr(byte).isalnum():
            kinds[byte] = SINGLE
    kinds[: ord(" ") + 1] = BLANK
    kinds[0x7F] = BLANK
    kinds[0x80:0xC0] = INNER
    kinds[0xC2] = SINGLE
    kinds[0xE2:0xEA] = SINGLE
    kinds[0xEF:] = SINGLE
    return kinds


def make_byte_shapes() -> torch.Tensor:
    """The shape of each byte, `(256,)`: 1 for ASCII capitals, 2 for ASCII small letters, 3 for
    digits, 4 for bytes beyond ASCII. All other bytes are their own shape."""
    shapes = torch.arange(256)
    shapes[ord("A") : ord("Z") + 1] = 1
    shapes[ord("a") : ord("z") + 1] = 2
    shapes[ord("0") : ord("9") + 1] = 3
    shapes[0x80:] = 4
    return shapes


# The default device is "meta" if this file is imported while transformers creates a model without
# weights, but these tables need values.
with torch.device("cpu"):
    BYTE_KINDS = make_byte_kinds()
    BYTE_SHAPES = make_byte_shapes()
    powers = [pow(HASH_BASE, place, PRIME) for place in range(MAX_WORD_BYTES)]
    HASH_POWERS = torch.tensor(powers)


def places_where(condition: torch.Tensor) -> torch.Tensor:
    """The places at which `condition` `(N,)` is true.

    This file indexes tensors by places instead of conditions, because exported graphs fail if a
    condition is true nowhere.
    """
    return condition.nonzero()[:, 0]


def places_in(sorted_values: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The number of entries of `sorted_values` `(F,)` that are smaller than each of `values`.

    Exporters compile `searchsorted` into a comparison of every pair. Traced graphs use bisection
    instead, which compares each value with only 17 of 131,072 entries.
    """
    if not is_tracing(values):
        return torch.searchsorted(sorted_values, values)
    size = sorted_values.shape[0]
    places = torch.zeros_like(values)
    step = 1 << (size.bit_length() - 1)
    while step:
        further = places + step
        last = further.clamp(max=size) - 1
        is_further = (further <= size) & (sorted_values[last] < values)
        places = torch.where(is_further, further, places)
        step //= 2
    return places


def shifted(values: torch.Tensor, distance: int, fill: int = 0) -> torch.Tensor:
    """The value `distance` places after each of `values` `(N, ...)`, or `fill` where there is
    none."""
    padding = [0, 0] * (values.ndim - 1)
    if distance < 0:
        padding += [-distance, 0]
        return F.pad(values, padding, value=fill)[:distance]
    padding += [0, distance]
    return F.pad(values, padding, value=fill)[distance:]


def has_previous(documents: torch.Tensor) -> torch.Tensor:
    """Whether the item before each item belongs to the same document, `(N,)`.

    Args:
        documents: The document of each item, `(N,)`; -1 is allowed.
    """
    return documents == shifted(documents, distance=-1, fill=-2)


def seeded(hashes: torch.Tensor, seed: int) -> torch.Tensor:
    """The hashes of another kind of features that consist of the same bytes."""
    return (hashes * 31 + SEED_BASE * seed) % PRIME


def hash_pairs(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The hashes of ordered pairs."""
    return (left * 31 + right * 17 + 1) % PRIME


@dataclass
class Words:
    """The words of some documents.

    Without blanks the texts of all documents are one row of S bytes, which is divided into W words.
    No word spans two documents.

    Attributes:
        text: The bytes, `(S,)`.
        word_of_byte: The word of each byte, `(S,)`.
        starts: The first byte of each word, `(W,)`.
        ends: The byte after the last byte of each word, `(W,)`.
        documents: The document of each word, `(W,)`, ascending.
        word_of_token: The word of the first byte of each token, `(N,)`. A token without such bytes
            has the next word of its document, or -1 if there is none.
        is_first: Whether a word begins in each token, `(N,)`. The first token of a word may be the
            blank before it.
    """

    text: torch.Tensor
    word_of_byte: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    documents: torch.Tensor
    word_of_token: torch.Tensor
    is_first: torch.Tensor

    @classmethod
    def of_tokens(
        cls,
        token_bytes: torch.Tensor,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> "Words":
        """The words of a row of tokens.

        Args:
            token_bytes: The first bytes of each token of the vocabulary, `(vocab, LONGEST_TOKEN)`,
                with zeros after the end of the token.
            token_ids: `(N,)`.
            documents: The document of each token, `(N,)`, ascending.
        """
        bytes_of_tokens = token_bytes[token_ids].long()  # (N, LONGEST_TOKEN)
        all_bytes = bytes_of_tokens.flatten()
        places = places_where(all_bytes)
        text = all_bytes[places]
        token_of_byte = places // LONGEST_TOKEN
        document_of_byte = documents[token_of_byte]

        begins, is_in_word = find_words(text, document_of_byte)
        kept = places_where(is_in_word)
        text = text[kept]  # (S,)
        token_of_byte = token_of_byte[kept]  # (S,)
        document_of_byte = document_of_byte[kept]  # (S,)
        begins = begins[kept]  # (S,)

        word_of_byte = begins.cumsum(0) - 1
        starts = places_where(begins)
        end_of_text = starts.new_full((1,), text.shape[0])
        ends = torch.cat((starts, end_of_text))[1:]
        word_of_token = find_words_of_tokens(
            word_of_byte=word_of_byte,
            token_of_byte=token_of_byte,
            document_of_byte=document_of_byte,
            documents=documents,
        )
        is_special = bytes_of_tokens[:, 0] == SEPARATOR
        is_part = (word_of_token >= 0) & ~is_special
        word_of_part = torch.where(is_part, word_of_token, -1)
        word_before = shifted(word_of_part, distance=-1, fill=-1)
        is_first = is_part & (word_of_token != word_before)
        return cls(
            text=text,
            word_of_byte=word_of_byte,
            starts=starts,
            ends=ends,
            documents=document_of_byte[starts],
            word_of_token=word_of_token,
            is_first=is_first,
        )

    @property
    def sizes(self) -> torch.Tensor:
        """The number of bytes of each word, `(W,)`."""
        return self.ends - self.starts

    @property
    def bytes_before(self) -> torch.Tensor:
        """The number of bytes of the same word before each byte, `(S,)`."""
        places = torch.arange(self.text.shape[0], device=self.text.device)
        return places - self.starts[self.word_of_byte]

    @property
    def bytes_left(self) -> torch.Tensor:
        """The number of bytes of the same word from each byte on, `(S,)`."""
        places = torch.arange(self.text.shape[0], device=self.text.device)
        return self.ends[self.word_of_byte] - places

    def lower(self) -> torch.Tensor:
        """The text with ASCII letters in lower case, `(S,)`."""
        is_capital = (self.text >= ord("A")) & (self.text <= ord("Z"))
        return torch.where(is_capital, self.text + 32, self.text)

    def hash_words(self, text: torch.Tensor) -> torch.Tensor:
        """The hash of each word, `(W,)`, where `text` `(S,)` replaces the bytes."""
        return self._hash(values=text, places=self.bytes_before, words=self.word_of_byte)

    def hash_shapes(self) -> torch.Tensor:
        """The hash of the shape of each word, `(W,)`.

        A run of bytes of the same shape counts as one: the shape of Film is `Xx`, and that of 20.5
        is `d.d`.
        """
        shapes = BYTE_SHAPES.to(self.text.device)[self.text]
        begins_run = shapes != shifted(shapes, distance=-1)
        begins_run |= self.bytes_before == 0
        runs = begins_run.cumsum(0)
        places = runs - runs[self.starts[self.word_of_byte]]
        first_bytes = places_where(begins_run)
        return self._hash(
            values=shapes[first_bytes],
            places=places[first_bytes],
            words=self.word_of_byte[first_bytes],
        )

    def _hash(
        self,
        values: torch.Tensor,
        places: torch.Tensor,
        words: torch.Tensor,
    ) -> torch.Tensor:
        """The polynomial hash of the values of each word, `(W,)`.

        Args:
            values: `(V,)`.
            places: The place of each value in its word, `(V,)`.
            words: The word of each value, `(V,)`.
        """
        places = places.clamp(max=MAX_WORD_BYTES - 1)
        powers = HASH_POWERS.to(values.device)[places]
        terms = (values + 1) * powers
        sums = torch.zeros_like(self.starts).index_add(0, words, terms)
        return sums % PRIME


def find_words(text: torch.Tensor, documents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether a word begins at each byte, and whether the byte belongs to a word, each `(T,)`.

    Args:
        text: The bytes, `(T,)`.
        documents: The document of each byte, `(T,)`, ascending.
    """
    kinds = BYTE_KINDS.to(text.device)[text]
    is_lead = kinds != INNER
    # A cumulative maximum would find the first byte of each character too, but exporters do not
    # support it over a size that depends on the data.
    lead_places = F.pad(places_where(is_lead), (1, 0))
    lead_of_byte = lead_places[is_lead.cumsum(0)]
    kind_of_character = kinds[lead_of_byte]
    kind_before = shifted(kind_of_character, distance=-1, fill=BLANK)

    begins = kinds == SINGLE
    begins |= (kinds == LETTER) & (kind_before != LETTER)
    begins |= is_lead & ~has_previous(documents)
    is_in_word = (kind_of_character != BLANK) & (begins.cumsum(0) > 0)
    return begins, is_in_word


def find_words_of_tokens(
    word_of_byte: torch.Tensor,
    token_of_byte: torch.Tensor,
    document_of_byte: torch.Tensor,
    documents: torch.Tensor,
) -> torch.Tensor:
    """The word of the first byte of each token, `(N,)`.

    A tokenizer may make a token of the blank before a word. A token without bytes therefore has the
    next word of its document, or -1 if there is none.

    Args:
        word_of_byte: `(S,)`.
        token_of_byte: `(S,)`.
        document_of_byte: `(S,)`.
        documents: The document of each token, `(N,)`.
    """
    ones = torch.ones_like(token_of_byte)
    num_bytes = torch.zeros_like(documents).index_add(0, token_of_byte, ones)
    next_byte = num_bytes.cumsum(0) - num_bytes
    # If no byte follows the last tokens, their next byte is the one that is appended here.
    words = F.pad(word_of_byte, (0, 1), value=-1)
    documents_of_words = F.pad(document_of_byte, (0, 1), value=-1)
    is_in_document = documents_of_words[next_byte] == documents
    return torch.where(is_in_document, words[next_byte], -1)


def hash_substrings(text: torch.Tensor, max_length: int) -> list[torch.Tensor]:
    """The hashes of the substrings that begin at each byte, `(S,)` for each length from 1 to
    `max_length`. A substring may extend beyond the end of its word.

    Args:
        text: The bytes, `(S,)`.
        max_length: In bytes.
    """
    hashes = torch.zeros_like(text)
    hashes_by_length = []
    for length in range(1, max_length + 1):
        last_byte = shifted(text, distance=length - 1)
        hashes = (hashes * HASH_BASE + last_byte + 1) % PRIME
        hashes_by_length.append(hashes)
    return hashes_by_length


def messages_of_neighbours(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    documents: torch.Tensor,
    join: Callable[..., torch.Tensor] = torch.amax,
) -> torch.Tensor:
    """The messages that the words of a linear chain receive from their neighbours, `(W, K)`, to be
    added to `scores`.

    Up to a constant for each word, the sums are max-marginals with `torch.amax`: the score of the
    best sequence that contains the tag, so their maxima are the best sequence (Viterbi). With
    `torch.logsumexp` they are the logarithms of the marginal probabilities.

    All words exchange messages with both neighbours at the same time, `NUM_MESSAGES` times (belief
    propagation). This needs no loop over the words of a sentence, and is exact for sentences of up
    to 17 words.

    Args:
        scores: The scores of K tags for each of W words, `(W, K)`.
        transitions: The scores of each tag (row) before each other tag (column), `(K, K)`.
        documents: The document of each word, `(W,)`, ascending.
        join: `torch.amax` or `torch.logsumexp`, which joins the tags of a neighbour.
    """
    has_left = has_previous(documents)[:, None]  # (W, 1)
    has_right = shifted(has_left, distance=1)  # (W, 1)
    from_left = torch.zeros_like(scores)
    from_right = torch.zeros_like(scores)
    for _ in range(NUM_MESSAGES):
        to_right = pass_on(scores + from_left, transitions, join)  # (W, K)
        to_left = pass_on(scores + from_right, transitions.T, join)  # (W, K)
        from_left = shifted(to_right, distance=-1) * has_left
        from_right = shifted(to_left, distance=1) * has_right
    return from_left + from_right


def pass_on(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    join: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """The message of each word to one of its neighbours, `(W, K)`, whose maximum is 0.

    Args:
        scores: The scores of the tags of each word, `(W, K)`.
        transitions: The scores of the tags of the word (rows) with those of the neighbour
            (columns), `(K, K)`.
        join: `torch.amax` or `torch.logsumexp`.
    """
    if join is torch.logsumexp:
        messages = log_matmul(scores, transitions)
    elif is_tracing(scores):
        messages = torch.amax(scores[:, :, None] + transitions, dim=1)
    else:
        words_at_once = max(1, MAX_PAIRS // transitions.numel())
        parts = []
        for part in scores.split(words_at_once):
            parts.append(best_of_pairs(part[:, :, None] + transitions))
        messages = torch.cat(parts)
    return messages - messages.amax(dim=-1, keepdim=True)


def log_matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Compute `log(exp(left) @ exp(right))`, `(W, K)`, without overflow.

    Args:
        left: `(W, K)`.
        right: `(K, K)`.
    """
    left_max = left.amax(dim=-1, keepdim=True)
    right_max = right.amax()
    product = (left - left_max).exp() @ (right - right_max).exp()
    # The product may underflow to 0, which has no logarithm.
    product = product.clamp(min=torch.finfo(product.dtype).tiny)
    return product.log() + left_max + right_max


def best_of_pairs(pairs: torch.Tensor) -> torch.Tensor:
    """The maxima of `(W, K, K)` over dimension 1, `(W, K)`."""
    if torch.is_grad_enabled():
        # The gradient of `max` needs only the places of the maxima, that of `amax` all scores.
        return pairs.max(dim=1).values
    return pairs.amax(dim=1)


def exchange_columns(
    logits: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
) -> torch.Tensor:
    """The logits `(R, K)`, with the columns `left` and `right`, each `(R,)`, exchanged in each
    row."""
    left = left[:, None]
    right = right[:, None]
    of_left = logits.gather(1, left)
    of_right = logits.gather(1, right)
    return logits.scatter(1, left, of_right).scatter(1, right, of_left)


class RoFormerLiteTextScores(nn.Module):
    """A table of `config.classifier_text_features` features of the text, with a row of scores for
    each.

    Features are identified by a hash of 31 bits. All scores are initialised to 0. They can be
    fitted apart from the model, as `roformer-lite train` does, and receive gradients too.
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
        token_bytes = torch.zeros(config.vocab_size, LONGEST_TOKEN, dtype=torch.uint8)
        self.register_buffer("token_bytes", token_bytes)

    def initialize_own_weights(self, std: float) -> None:
        """Initialise the tensors that a checkpoint lacks, so that no text has a score."""
        init.zeros_(self.weight)
        init.zeros_(self.bias)
        init.zeros_(self.token_bytes)
        init.copy_(self.hashes, torch.arange(self.hashes.shape[0]))

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
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the scores of the text to the logits of a batch `(B, L)`; see `forward`.

        Args:
            logits: `(documents, num_labels)` or `(B, L, num_labels)`. The logits of padding do not
                change.
            input_ids: `(B, L)`.
            attention_mask: See `document_numbers`.
            position_ids: See `document_numbers`.
            cu_seq_lens: See `document_numbers`.

        Raises:
            ValueError: without `input_ids`, from which the text is read.
        """
        if input_ids is None:
            raise ValueError(
                "inputs_embeds: classifier_text_features reads the text; give input_ids instead."
            )
        batch_size, length = input_ids.shape
        numbers, _ = document_numbers(
            shape=(batch_size, length),
            device=input_ids.device,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cu_seq_lens_q=cu_seq_lens,
        )
        numbers = numbers.flatten()
        places = places_where(numbers)  # (N,)
        token_ids = input_ids.flatten()[places]
        documents = numbers[places] - 1
        if logits.ndim == 2:
            return self(logits, token_ids, documents)

        flat_logits = logits.flatten(0, 1)
        joint, answers = self(flat_logits[places], token_ids, documents)
        # Exporters do not support `index_copy` with a size that depends on the data.
        index = places[:, None].expand_as(joint)
        joint = flat_logits.scatter(0, index, joint)
        answers = flat_logits.scatter(0, index, answers)
        return joint.view_as(logits), answers.view_as(logits)

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
        places = places_in(self.hashes, keys)
        places = places.clamp(max=num_features - 1)
        known = places_where(self.hashes[places] == keys)
        occurrences = owners[known] * num_features + places[known]
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
            rows: The place of the feature in the table, `(F,)`.
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
        weights = self.rarity[rows]
        if self.counts_repeated:
            weights = weights * (1 + counts.to(weights.dtype).log())
        square_sums = weights.new_zeros(num_owners)
        square_sums = square_sums.index_add(0, owners, weights.square())
        return weights / square_sums.sqrt()[owners]

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
        pairs = places_where(documents == next_documents)
        next_documents = shifted(documents, distance=2, fill=-1)
        triples = places_where(documents == next_documents)
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
                places = places_where(is_long & condition)
                keys_by_kind.append(seeded(hashes, seed)[places])
                words_by_kind.append(words.word_of_byte[places])
        keys = torch.cat(keys_by_kind)
        word_of_key = torch.cat(words_by_kind)

        is_lead = BYTE_KINDS.to(text.device)[text] != INNER
        num_characters = torch.zeros_like(words.starts)
        num_characters = num_characters.index_add(0, words.word_of_byte, is_lead.long())
        has_several = (num_characters > 1)[word_of_key]
        groups = []
        for is_in_group in (has_several, ~has_several):
            places = places_where(is_in_group)
            groups.append((keys[places], words.documents[word_of_key[places]]))
        return groups


class RoFormerLiteWordScores(RoFormerLiteTextScores):
    """Scores of words and of consecutive tags, which are added to the logits of a tagger: a linear-
    chain conditional random field on top of the encoder (Lafferty et al. 2001, ICML).

    The features of a word are the word with and without its capitals, its shape, its first and last
    1 to 4 bytes, the pairs that it forms with the words before and after it, and the words and
    shapes at distances of up to two words. Each token has the features of its first word. The
    transitions connect the first tokens of the words; see `messages_of_neighbours`.

    With `config.decode_tags` words are separated by spaces only, as in the training data, and each
    word has a single tag in the output. The later tokens of a word repeat the tag of its first
    token, with I-X in place of B-X, and tokens of spaces either continue the entity or are outside
    of entities. A transition whose score is `IMPOSSIBLE` does not occur: I-X becomes B-X wherever
    it is not allowed. All ways of joining tokens therefore find the same entities, and so does the
    pipeline of transformers.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.decodes = config.decode_tags
        id2label: dict[Any, str] = dict(config.id2label or {})
        names = [str(id2label.get(number)) for number in range(num_labels)]
        number_of = {name: number for number, name in enumerate(names)}
        # These lists map each tag to another one, or to itself if there is no such tag: I-X to B-X
        # (`begins`), B-X to I-X (`inside`), and the tag of a word to that of a space before the
        # word (`before`), which is I-X for I-X and O for all others.
        self.begins = list(range(num_labels))
        self.inside = list(range(num_labels))
        self.before = list(range(num_labels))
        for number, name in enumerate(names):
            if name.startswith("I-"):
                self.begins[number] = number_of.get("B-" + name[2:], number)
            else:
                self.before[number] = number_of.get("O", number)
            if name.startswith("B-"):
                self.inside[number] = number_of.get("I-" + name[2:], number)

    def initialize_own_weights(self, std: float) -> None:
        super().initialize_own_weights(std)
        init.zeros_(self.transitions)

    def words_of(self, token_ids: torch.Tensor, documents: torch.Tensor) -> Words:
        words = super().words_of(token_ids, documents)
        if self.decodes:
            words.is_first, _, _ = self.roles_of(token_ids, documents)
        return words

    def roles_of(
        self,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Whether each token begins a word between spaces, continues one, or consists of spaces
        only, each `(N,)`. Special tokens do none of these."""
        token_bytes = self.token_bytes[token_ids].long()  # (N, LONGEST_TOKEN)
        is_text = BYTE_KINDS.to(token_bytes.device)[token_bytes] != BLANK
        last_byte = (token_bytes != 0).sum(dim=1, keepdim=True) - 1  # (N, 1)
        ends_in_text = is_text.gather(1, last_byte.clamp(min=0))[:, 0]
        follows_text = shifted(ends_in_text, distance=-1) & has_previous(documents)

        has_text = is_text.any(dim=1)
        is_inside = is_text[:, 0] & follows_text
        is_first = has_text & ~is_inside
        is_special = token_bytes[:, 0] == SEPARATOR
        is_space = ~has_text & ~is_special
        return is_first, is_inside, is_space

    def forward(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        documents: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.words_of(token_ids, documents)
        joint = logits + self.score(words, num_owners=logits.shape[0])  # (N, num_labels)
        first = places_where(words.is_first)  # (W,)
        messages = messages_of_neighbours(
            scores=joint[first], transitions=self.transitions, documents=documents[first]
        )
        joint = joint.index_add(0, first, messages)
        if self.training or not self.decodes:
            return joint, joint

        is_first, is_inside, is_space = self.roles_of(token_ids, documents)
        answers = self.decode(joint, documents, is_first, is_inside, is_space)
        return joint, answers

    def decode(
        self,
        joint: torch.Tensor,
        documents: torch.Tensor,
        is_first: torch.Tensor,
        is_inside: torch.Tensor,
        is_space: torch.Tensor,
    ) -> torch.Tensor:
        """The logits whose maxima are the tags of the output, `(N, num_labels)`; see the class.

        Args:
            joint: The logits of all tokens, `(N, num_labels)`.
            documents: The document of each token, `(N,)`, ascending.
            is_first: `(N,)`; see `roles_of`.
            is_inside: `(N,)`.
            is_space: `(N,)`.
        """
        first = places_where(is_first)
        # One word that belongs to no document is appended, because exported graphs compute wrong
        # results if there are no words.
        logits = F.pad(joint[first], (0, 0, 0, 1))  # (W, num_labels)
        owners = F.pad(documents[first], (0, 1), value=-1)  # (W,)
        has_left = has_previous(owners)

        best_tags = logits.argmax(dim=-1)  # (W,)
        tags = self._allowed_tags(best_tags, has_left)
        logits = exchange_columns(logits, best_tags, tags)
        logits_inside = self._logits_inside_words(logits, tags, has_left)

        next_word = is_first.cumsum(0)  # (N,)
        word = (next_word - 1).clamp(min=0)
        answers = torch.where(is_first[:, None], logits[word], joint)
        answers = torch.where(is_inside[:, None], logits_inside[word], answers)

        own_tags = joint.argmax(dim=-1)  # (N,)
        next_tags = torch.where(
            owners[next_word] == documents,
            tags[next_word],
            self._replace(own_tags, self.begins),
        )
        space_tags = self._replace(next_tags, self.before)
        logits_of_spaces = exchange_columns(joint, own_tags, space_tags)
        return torch.where(is_space[:, None], logits_of_spaces, answers)

    def _allowed_tags(self, tags: torch.Tensor, has_left: torch.Tensor) -> torch.Tensor:
        """`tags` `(W,)`, with B-X in place of I-X where the transition is forbidden.

        Args:
            tags: `(W,)`.
            has_left: Whether there is a word before each word in its document, `(W,)`.
        """
        is_forbidden = self.transitions < IMPOSSIBLE / 2  # (num_labels, num_labels)
        pairs = shifted(tags, distance=-1) * is_forbidden.shape[0] + tags
        is_wrong_after_left = is_forbidden.flatten()[pairs]
        # A tag that some tag may not precede may not begin a document either.
        is_wrong_at_start = is_forbidden.any(dim=0)[tags]
        # ONNX Runtime has no `where` for booleans.
        is_wrong = (has_left & is_wrong_after_left) | (~has_left & is_wrong_at_start)
        return torch.where(is_wrong, self._replace(tags, self.begins), tags)

    def _logits_inside_words(
        self,
        logits: torch.Tensor,
        tags: torch.Tensor,
        has_left: torch.Tensor,
    ) -> torch.Tensor:
        """The logits of the tokens of each word after its first token, `(W, num_labels)`.

        These tokens have the logits of B-X and I-X exchanged, so that their tag is I-X. However,
        pipelines may average the logits of all tokens of a word, which would change the tag of
        two kinds of words: those that begin an entity right after another entity of the same type,
        which must remain B-X, and those with a third tag that is almost as good as B-X. The later
        tokens of these words have an I-X that is only slightly better than B-X.

        Args:
            logits: The logits of the first token of each word, `(W, num_labels)`.
            tags: The tag of each word, `(W,)`, which has the greatest logit.
            has_left: Whether there is a word before each word in its document, `(W,)`.
        """
        continued = self._replace(tags, self.inside)
        exchanged = exchange_columns(logits, tags, continued)

        tag_index = tags[:, None]
        continued_index = continued[:, None]
        near_ties = logits - logits.gather(1, tag_index)
        near_ties = near_ties.scatter(1, tag_index, -TINY_LOGIT)
        near_ties = near_ties.scatter(1, continued_index, TINY_LOGIT)

        is_adjacent = has_left & (shifted(continued, distance=-1) == continued)
        both = torch.cat((tag_index, continued_index), dim=1)  # (W, 2)
        probabilities = logits.float().softmax(dim=-1)
        share_of_both = probabilities.gather(1, both).sum(dim=1)
        best_other = probabilities.scatter(1, both, 0.0).amax(dim=1)
        has_rival = share_of_both < 2.01 * best_other
        is_tied = (tags != continued) & (is_adjacent | has_rival)
        return torch.where(is_tied[:, None], near_ties, exchanged)

    def _replace(self, tags: torch.Tensor, table: list[int]) -> torch.Tensor:
        """The tags `(W,)` that `table` has in place of `tags`."""
        return torch.tensor(table, device=tags.device)[tags]

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        text = words.lower()  # (S,)
        lower = words.hash_words(text)  # (W,)
        shapes = words.hash_shapes()  # (W,)
        keys = [
            seeded(words.hash_words(words.text), WORD_SEED),
            seeded(lower, LOWER_CASE_SEED),
            seeded(shapes, SHAPE_SEED),
        ]
        short_word = seeded(lower, SHORT_WORD_SEED)
        substrings = hash_substrings(text, max_length=max(AFFIX_LENGTHS))
        for length, hashes in enumerate(substrings, start=1):
            is_longer = words.sizes > length
            prefix = seeded(hashes[words.starts], PREFIX_SEED + length)
            suffix_places = (words.ends - length).clamp(min=0)
            suffix = seeded(hashes[suffix_places], SUFFIX_SEED + length)
            keys.append(torch.where(is_longer, prefix, short_word))
            keys.append(torch.where(is_longer, suffix, short_word))
        for distance in NEIGHBOUR_DISTANCES:
            owners = shifted(words.documents, distance=distance, fill=-1)
            is_near = owners == words.documents
            near_word = torch.where(is_near, shifted(lower, distance), 0)
            near_shape = torch.where(is_near, shifted(shapes, distance), 0)
            seed = NEIGHBOUR_SEED + 2 * distance
            keys.append(seeded(near_word, seed))
            keys.append(seeded(near_shape, seed + 1))
            if abs(distance) == 1:
                keys.append(seeded(hash_pairs(lower, near_word), PAIR_SEED + distance))
        keys_of_words = torch.stack(keys, dim=1)  # (W, features)

        tokens = places_where(words.word_of_token >= 0)
        keys_of_tokens = keys_of_words[words.word_of_token[tokens]]  # (tokens, features)
        owners = tokens[:, None].expand_as(keys_of_tokens)
        return keys_of_tokens.flatten(), owners.flatten()


TEXT_SCORES["document"] = RoFormerLiteDocumentScores
TEXT_SCORES["word"] = RoFormerLiteWordScores
