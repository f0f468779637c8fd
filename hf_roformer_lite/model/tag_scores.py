"""Scores of words and of consecutive tags, which a tagger adds to its logits, and the decoding of
its output.

The features of a conditional random field (words, their shapes and their neighbours) find what an
encoder trained on few sentences misses.

Only bundles of models that use `classifier_text_features` or `decode_tags` contain this file and
those of the words, n-grams and chains. Their `auto_map` looks up every class here.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init

from .configuration_roformer_lite import RoFormerLiteConfig
from .heads_roformer_lite import *  # noqa: F401, F403
from .heads_roformer_lite import TEXT_SCORES
from .ngram_scores import AFFIX_LENGTHS, PREFIX_SEED, SUFFIX_SEED, RoFormerLiteTextScores
from .tag_chain import IMPOSSIBLE, messages_of_neighbours
from .words_of_tokens import (
    BLANK,
    BYTE_KINDS,
    SEPARATOR,
    Words,
    has_previous,
    hash_pairs,
    hash_substrings,
    indices_where,
    seeded,
    shifted,
)

# Distances in words.
NEIGHBOUR_DISTANCES = (-2, -1, 1, 2)
# These numbers make the hashes of different kinds of features differ.
WORD_SEED = 1
LOWER_CASE_SEED = 2
SHAPE_SEED = 3
SHORT_WORD_SEED = 4
NEIGHBOUR_SEED = 30
PAIR_SEED = 40

# The better of two tags that should be almost equally good leads by twice this logit.
TINY_LOGIT = 1e-5


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


class RoFormerLiteWordScores(RoFormerLiteTextScores):
    """Scores of words and of consecutive tags, which are added to the logits of a tagger: a linear-
    chain conditional random field on top of the encoder (Lafferty et al. 2001, ICML).

    The features of a word are the word with and without its capitals, its shape, its first and last
    1 to 4 bytes, the pairs that it forms with the words before and after it, and the words and
    shapes at distances of up to two words. Each token has the features of its first word. The
    transitions connect the first tokens of the words; see `messages_of_neighbours`.

    With `config.decode_tags` words are separated only by spaces, as in the training data, and each
    word has a single tag in the output. The later tokens of a word repeat the tag of its first
    token, with I-X instead of B-X, and tokens of spaces either continue the entity or are outside
    of entities. A transition whose score is `IMPOSSIBLE` does not occur: I-X becomes B-X wherever
    it is not allowed. All aggregation strategies of transformers' pipeline therefore find the same
    entities.
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
        token_bytes = self.token_bytes[token_ids].long()  # (N, width)
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
        first = indices_where(words.is_first)  # (W,)
        messages = messages_of_neighbours(
            scores=joint[first],
            transitions=self.transitions,
            documents=documents[first],
        )
        joint = joint.index_add(0, first, messages)
        if self.training or not self.decodes:
            return joint, joint

        is_first, is_inside, is_space = self.roles_of(token_ids, documents)
        output = self.decode(joint, documents, is_first, is_inside, is_space)
        return joint, output

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
        first = indices_where(is_first)
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
        output = torch.where(is_first[:, None], logits[word], joint)
        output = torch.where(is_inside[:, None], logits_inside[word], output)

        own_tags = joint.argmax(dim=-1)  # (N,)
        next_tags = torch.where(
            owners[next_word] == documents,
            tags[next_word],
            self._replace(own_tags, self.begins),
        )
        space_tags = self._replace(next_tags, self.before)
        logits_of_spaces = exchange_columns(joint, own_tags, space_tags)
        return torch.where(is_space[:, None], logits_of_spaces, output)

    def _allowed_tags(self, tags: torch.Tensor, has_left: torch.Tensor) -> torch.Tensor:
        """`tags` `(W,)`, with B-X instead of I-X where the transition is forbidden.

        Args:
            tags: `(W,)`.
            has_left: Whether there is a word before each word in its document, `(W,)`.
        """
        is_forbidden = self.transitions < IMPOSSIBLE / 2  # (num_labels, num_labels)
        pairs = shifted(tags, distance=-1) * is_forbidden.shape[0] + tags
        is_wrong_after_left = is_forbidden.flatten()[pairs]
        # A tag that is forbidden after some other tag is also forbidden at the start of a document.
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
        """The tags `(W,)` to which `table` maps `tags`."""
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
            suffix_indices = (words.ends - length).clamp(min=0)
            suffix = seeded(hashes[suffix_indices], SUFFIX_SEED + length)
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

        tokens = indices_where(words.word_of_token >= 0)
        keys_of_tokens = keys_of_words[words.word_of_token[tokens]]  # (tokens, features)
        owners = tokens[:, None].expand_as(keys_of_tokens)
        return keys_of_tokens.flatten(), owners.flatten()


TEXT_SCORES["word"] = RoFormerLiteWordScores
