"""A linear model beside the encoder of a classifier or tagger: scores of features of the text.

On a few thousand short texts a linear model on n-grams is hard to beat (Wang & Manning 2012, ACL; Joulin et al. 2017,
EACL), and it errs elsewhere than an encoder does. For taggers, the word, its shape, its neighbours and their tags do
the same.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .tag_chain import messages_of_neighbours
from .text_of_tokens import LONGEST_TOKEN, Words, join, places_in, places_where, seeded

_CHARACTER_NGRAMS = (2, 3, 4, 5)  # bytes
_AFFIXES = (1, 2, 3, 4)  # bytes
_NEIGHBOURS = (-2, -1, 1, 2)  # words


class RoFormerLiteTextScores(nn.Module):
    """A table of features of the text with a row of scores for each, `config.classifier_text_features` rows.

    A feature is known by a hash of 31 bits. The scores are zero at first. `roformer-lite train` fits them; gradients
    reach them as well.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        rows = config.classifier_text_features
        self.weight = nn.Parameter(torch.zeros(rows, num_labels))
        self.bias = nn.Parameter(torch.zeros(num_labels))
        self.register_buffer("hashes", torch.arange(rows))  # rising
        self.register_buffer("token_bytes", torch.zeros(config.vocab_size, LONGEST_TOKEN, dtype=torch.uint8))

    def init_weights(self) -> None:
        """Scores of nothing, for what a checkpoint lacks."""
        for tensor in (self.weight, self.bias, self.token_bytes):
            init.zeros_(tensor)
        init.copy_(self.hashes, torch.arange(self.hashes.shape[0]))

    def resize_vocabulary(self, size: int) -> None:
        """Room for `size` tokens; new ones have no bytes and so no text."""
        self.token_bytes = F.pad(self.token_bytes, (0, 0, 0, size - len(self.token_bytes)))

    def forward(self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """What the text adds to the logits of an encoder, in the shape of `logits`.

        Args:
            logits: `(documents, num_labels)` or `(N, num_labels)`.
            token_ids: Of the real tokens, `(N,)`.
            documents: The number of the document of each token, `(N,)`, rising.
        """
        raise NotImplementedError

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        """The hash of each feature, known or not, and its owner, a document or a token; each `(K,)`."""
        raise NotImplementedError

    def words_of(self, token_ids: torch.Tensor, documents: torch.Tensor) -> Words:
        return Words.of_tokens(self.token_bytes, token_ids, documents)

    def score(self, words: Words, num_owners: int) -> torch.Tensor:
        """The sum of the scores of each owner's features, each once, and a bias, `(num_owners, num_labels)`."""
        keys, owners = self.find_features(words)
        places = places_in(self.hashes, keys).clamp(max=self.hashes.shape[0] - 1)
        known = places_where(self.hashes[places] == keys)
        found = torch.unique(owners[known] * self.hashes.shape[0] + places[known])  # by rising owner
        rows, owners = found % self.hashes.shape[0], found // self.hashes.shape[0]  # each (K,)
        weights = self.weigh(rows, owners, num_owners)  # (K,)
        if is_tracing(rows):  # exporters have no bags
            scores = self.weight[rows] * weights[:, None]
            return scores.new_zeros(num_owners, scores.shape[1]).index_add(0, owners, scores) + self.bias
        offsets = torch.searchsorted(owners, torch.arange(num_owners, device=owners.device))
        return F.embedding_bag(rows, self.weight, offsets, mode="sum", per_sample_weights=weights) + self.bias

    def weigh(self, rows: torch.Tensor, owners: torch.Tensor, num_owners: int) -> torch.Tensor:
        """How much each of the features found counts, `(K,)`."""
        return torch.ones_like(rows, dtype=self.weight.dtype)


class RoFormerLiteDocumentScores(RoFormerLiteTextScores):
    """Scores of a document's n-grams, added to the logits of a classifier.

    The n-grams are words and pairs of words, and of each word of two bytes or more its substrings of 2 to 5 bytes and
    its first and last 1 to 4 bytes; ASCII letters count as lower case. Each has the weight `rarity`, and the weights
    of a document have the Euclidean norm 1.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.register_buffer("rarity", torch.ones(config.classifier_text_features))

    def init_weights(self) -> None:
        super().init_weights()
        init.ones_(self.rarity)

    def forward(self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return self.score(self.words_of(token_ids, documents), logits.shape[0])

    def weigh(self, rows: torch.Tensor, owners: torch.Tensor, num_owners: int) -> torch.Tensor:
        weights = self.rarity[rows]
        norms = weights.new_zeros(num_owners).index_add(0, owners, weights.square()).sqrt()
        return weights / norms[owners]

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        text = words.lower()  # (S,)
        hashes, owners = words.hash_words(text), words.documents  # each (W,)
        same = places_where(owners[1:] == owners[:-1])
        keys, of = [hashes, join(hashes[:-1], hashes[1:])[same]], [owners, owners[1:][same]]
        is_long = (words.ends - words.starts > 1)[words.word_of_byte]  # (S,)
        places = torch.arange(text.shape[0], device=text.device)
        is_first = places == words.starts[words.word_of_byte]
        left = words.ends[words.word_of_byte] - places
        for length, (windows, fits) in enumerate(words.parts(text, max(_CHARACTER_NGRAMS)), 1):
            sorts = [(length, is_long & fits)] if length in _CHARACTER_NGRAMS else []
            if length in _AFFIXES:
                sorts += [(10 + length, is_long & fits & is_first), (20 + length, is_long & (left == length))]
            for seed, condition in sorts:
                chosen = places_where(condition)
                keys.append(seeded(windows, seed)[chosen])
                of.append(owners[words.word_of_byte[chosen]])
        return torch.cat(keys), torch.cat(of)


class RoFormerLiteWordScores(RoFormerLiteTextScores):
    """Scores of words and of the tags that follow one another, added to the logits of a tagger: a conditional random
    field (Lafferty et al. 2001, ICML) above the encoder.

    The features of a word are the word with its capitals and without, its shape, its first and last 1 to 4 bytes, the
    pairs with the words beside it, and of two words to each side the word and its shape. Each token has those of its
    first word. `transitions` hold between the tokens that words begin with; see `messages_of_neighbours`.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))

    def init_weights(self) -> None:
        super().init_weights()
        init.zeros_(self.transitions)

    def forward(self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        words = self.words_of(token_ids, documents)
        scores = self.score(words, logits.shape[0])  # (N, num_labels)
        first = places_where(words.is_first)  # (W,)
        joint = logits[first] + scores[first]  # (W, num_labels)
        messages = messages_of_neighbours(joint, self.transitions, documents[first])
        return scores.index_add(0, first, messages)

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        text = words.lower()
        lower, shapes, owners = words.hash_words(text), words.shapes(), words.documents  # each (W,)
        keys = [seeded(words.hash_words(words.text), 1), seeded(lower, 2), seeded(shapes, 3)]
        for length, (windows, _) in enumerate(words.parts(text, max(_AFFIXES)), 1):
            for seed, place in ((10, words.starts), (20, words.ends - length)):
                part = seeded(windows[place.clamp(min=0)], seed + length)
                keys.append(torch.where(words.ends - words.starts > length, part, seeded(lower, 4)))
        for distance in _NEIGHBOURS:
            beside = [_moved(values, owners, distance) for values in (lower, shapes)]
            keys += [seeded(values, 30 + 2 * distance + n) for n, values in enumerate(beside)]
            if abs(distance) == 1:
                keys.append(seeded(join(lower, beside[0]), 40 + distance))
        of_word = torch.stack(keys, dim=1)  # (W, features)
        tokens = places_where(words.word_of_token >= 0)
        of_token = of_word[words.word_of_token[tokens]]  # (tokens with a word, features)
        return of_token.flatten(), tokens[:, None].expand_as(of_token).flatten()


def _moved(values: torch.Tensor, owners: torch.Tensor, distance: int) -> torch.Tensor:
    """What stands `distance` words further on, `(W,)`; 0 beyond the document."""
    outside = values.shape[0]
    places = torch.arange(outside, device=values.device) + distance
    places = torch.where(places >= 0, places, outside).clamp(max=outside)
    values, beside = F.pad(values, (0, 1)), F.pad(owners, (0, 1), value=-1)
    return torch.where(beside[places] == owners, values[places], 0)
