"""Features of the text beside the encoder of a classifier or tagger: a linear model of n-grams, and
a chain of tags.

On a few thousand short texts a linear model on n-grams is hard to beat (Wang & Manning 2012, ACL;
Joulin et al. 2017, EACL), and it errs elsewhere than an encoder does. For taggers, the word, its
shape, its neighbours and their tags do the same (Lafferty et al. 2001, ICML). The text is read from
`input_ids`: the bytes of the tokens are put together and cut into words, so that pipelines, servers
and exported graphs work as without it, whatever the tokens are.

Only bundles of models with `classifier_text_features` or `decode_tags` have this file; their
`auto_map` names all classes in it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .heads_roformer_lite import *  # noqa: F401, F403, all classes of a bundle
from .heads_roformer_lite import TEXT_SCORES
from .padding import is_padding_mask, packed_documents

LONGEST_TOKEN = 32  # bytes of a token that the table holds; what follows is not read
_LONGEST_WORD = 48  # bytes of a word that tell it from others
SEPARATOR = 0x1F  # the byte of a special token, a blank that no text has
_CHARACTER_NGRAMS = (2, 3, 4, 5)  # bytes
_AFFIXES = (1, 2, 3, 4)  # bytes
_NEIGHBOURS = (-2, -1, 1, 2)  # words
_REACH = 16  # neighbours to each side; what is further away changes next to nothing
IMPOSSIBLE = -50.0  # the score of a transition that is forbidden
# scores of two tags that stand in memory at a time, where no graph is traced
_PAIRS_AT_ONCE = 2**18
_SLIGHTLY = 1e-5  # more than the other of two answers
# of the polynomial hashes; products of two numbers below fit 64 bits
PRIME, _BASE = 2**31 - 1, 1_000_003

# What a byte of UTF-8 is in a text: between words, in a word, a character that is a word, or inside
# a character.
_BLANK, _LETTER, _SINGLE, _INNER = range(4)


def _byte_kinds() -> torch.Tensor:
    """The kind of each byte, `(256,)`.

    The first byte of a character tells its block. Beyond ASCII, the blocks of punctuation, symbols,
    kana and Han (U+0080 to 00BF, U+2000 to 9FFF, from U+F000) are characters that are words, all
    others letters.
    """
    kinds = torch.full((256,), _LETTER)
    kinds[:128] = torch.tensor([_LETTER if chr(byte).isalnum() else _SINGLE for byte in range(128)])
    kinds[:33], kinds[127] = _BLANK, _BLANK
    kinds[0x80:0xC0] = _INNER
    kinds[0xC2], kinds[0xE2:0xEA], kinds[0xEF:] = _SINGLE, _SINGLE, _SINGLE
    return kinds


def _byte_shapes() -> torch.Tensor:
    """1 for a capital of ASCII, 2 for a small letter, 3 for a digit, 4 beyond ASCII; others stand
    for themselves."""
    shapes = torch.arange(256)
    (
        shapes[ord("A") : ord("Z") + 1],
        shapes[ord("a") : ord("z") + 1],
        shapes[ord("0") : ord("9") + 1],
    ) = 1, 2, 3
    shapes[128:] = 4
    return shapes


# this file may be imported while a model is made without weights, on the device "meta"
with torch.device("cpu"):
    _KINDS, _SHAPES = _byte_kinds(), _byte_shapes()
    _POWERS = torch.tensor([pow(_BASE, place, PRIME) for place in range(_LONGEST_WORD)])


@dataclass
class Words:
    """The words of some documents: S bytes, blanks left out, cut into W words, none across two
    documents."""

    text: torch.Tensor  # (S,) bytes
    word_of_byte: torch.Tensor  # (S,)
    starts: torch.Tensor  # (W,) first byte of each word
    ends: torch.Tensor  # (W,) the byte after its last
    documents: torch.Tensor  # (W,) the number of its document, rising
    # (N,) the first word of a token or after it, -1 after the last of its document
    word_of_token: torch.Tensor
    is_first: torch.Tensor  # (N,) bool, the token that a word begins with, with the blank before it

    @classmethod
    def of_tokens(
        cls, token_bytes: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor
    ) -> "Words":
        """The words behind token ids `(N,)`.

        Args:
            token_bytes: The first bytes of each token, `(vocab, LONGEST_TOKEN)`, 0 after its end.
            token_ids: `(N,)`.
            documents: The number of the document of each token, `(N,)`, rising.
        """
        characters = token_bytes[token_ids].long()  # (N, LONGEST_TOKEN)
        there = places_where(characters.flatten())  # (S,) with the blanks
        text, tokens = characters.flatten()[there], there // LONGEST_TOKEN
        owners = documents[tokens]
        kinds = _KINDS.to(text.device)[text]
        is_lead = kinds != _INNER
        # exporters have no cummax over a size that depends on data
        leads = F.pad(places_where(is_lead), (1, 0))
        lead = leads[is_lead.cumsum(0)]  # first byte of the character
        kinds_of_lead = kinds[lead]
        before = F.pad(kinds_of_lead, (1, 0), value=_BLANK)[:-1]
        begins = (kinds == _SINGLE) | ((kinds == _LETTER) & (before != _LETTER))
        begins |= (kinds != _INNER) & (F.pad(owners, (1, 0), value=-1)[:-1] != owners)
        in_word = (kinds_of_lead != _BLANK) & (begins.cumsum(0) > 0)
        kept = places_where(in_word)
        # each (S,)
        text, owners, begins, tokens = text[kept], owners[kept], begins[kept], tokens[kept]
        words = begins.cumsum(0) - 1
        starts = places_where(begins)
        # none where there is no word
        ends = torch.cat((starts, starts.new_full((1,), text.shape[0])))[1:]
        word_of_token = _first_words(words, tokens, owners, documents)
        is_part = (word_of_token >= 0) & (characters[:, 0] != SEPARATOR)
        word_of_part = torch.where(is_part, word_of_token, -1)
        is_first = is_part & (F.pad(word_of_part, (1, 0), value=-1)[:-1] != word_of_token)
        return cls(text, words, starts, ends, owners[starts], word_of_token, is_first)

    def lower(self) -> torch.Tensor:
        """The text with small ASCII letters, `(S,)`."""
        return torch.where(
            (self.text >= ord("A")) & (self.text <= ord("Z")), self.text + 32, self.text
        )

    def hash_words(self, text: torch.Tensor) -> torch.Tensor:
        """A number of each word `(W,)` from bytes `(S,)`, those of the text or others in their
        place."""
        places = torch.arange(text.shape[0], device=text.device) - self.starts[self.word_of_byte]
        return self._hash(text, places, self.word_of_byte)

    def shapes(self) -> torch.Tensor:
        """A number of the shape of each word, `(W,)`: that of `Xx` for Film and of `d.d` for 20.5,
        where each run of one kind of character is one letter."""
        shapes = _SHAPES.to(self.text.device)[self.text]
        is_first = (
            torch.arange(shapes.shape[0], device=shapes.device) == self.starts[self.word_of_byte]
        )
        is_new = is_first | (shapes != F.pad(shapes, (1, 0))[:-1])
        runs = is_new.cumsum(0)
        places = runs - runs[self.starts[self.word_of_byte]]
        return self._hash(shapes[is_new], places[is_new], self.word_of_byte[is_new])

    def _hash(
        self, values: torch.Tensor, places: torch.Tensor, words: torch.Tensor
    ) -> torch.Tensor:
        """The polynomial of the values of each word, by their places in it."""
        powers = _POWERS.to(values.device)[places.clamp(max=_LONGEST_WORD - 1)]
        return torch.zeros_like(self.starts).index_add(0, words, (values + 1) * powers) % PRIME

    def parts(self, text: torch.Tensor, longest: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each length from 1 to `longest`: a number of the bytes from each place on, and
        whether so many are left in the word, both `(S,)`."""
        left = self.ends[self.word_of_byte] - torch.arange(text.shape[0], device=text.device)
        windows, parts = torch.zeros_like(text), []
        for length in range(1, longest + 1):
            shifted = F.pad(text, (0, length - 1))[length - 1 :]
            windows = (windows * _BASE + shifted + 1) % PRIME
            parts.append((windows, left >= length))
        return parts


def places_where(condition: torch.Tensor) -> torch.Tensor:
    """Where `condition` `(N,)` is true. Exported graphs fail to index by a condition that holds
    nowhere."""
    return condition.nonzero()[:, 0]


def places_in(rising: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """How many of `rising` `(F,)` are smaller than each of `values`. Exporters compare every pair
    for `searchsorted`; by halving, a graph of 2 to the power of 17 hashes reads 17 of them."""
    if not is_tracing(values):
        return torch.searchsorted(rising, values)
    places = torch.zeros_like(values)
    step = 1 << (rising.shape[0].bit_length() - 1)
    while step:
        further = places + step
        is_smaller = rising[further.clamp(max=rising.shape[0]) - 1] < values
        places = torch.where((further <= rising.shape[0]) & is_smaller, further, places)
        step //= 2
    return places


def seeded(hashes: torch.Tensor, seed: int) -> torch.Tensor:
    """Other numbers for features of another sort."""
    return (hashes * 31 + 1_000_033 * seed) % PRIME


def join(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A number of two things in this order."""
    return (left * 31 + right * 17 + 1) % PRIME


def _first_words(
    words: torch.Tensor, tokens: torch.Tensor, owners: torch.Tensor, documents: torch.Tensor
) -> torch.Tensor:
    """The word of the first byte of each token, or of the next token that has one, as a tokenizer
    may cut the blank before a word from it; -1 where none follows in the document.

    Args:
        words, tokens, owners: Of each byte its word, token and document, `(S,)`.
        documents: Of each token, `(N,)`.
    """
    # there may be no byte after it
    words, owners = F.pad(words, (0, 1), value=-1), F.pad(owners, (0, 1), value=-1)
    # (N,) bytes of each token
    sizes = torch.zeros_like(documents).index_add(0, tokens, torch.ones_like(tokens))
    first = sizes.cumsum(0) - sizes
    return torch.where(owners[first] == documents, words[first], -1)


def messages_of_neighbours(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    documents: torch.Tensor,
    join: Callable[[torch.Tensor, int], torch.Tensor] = torch.amax,
) -> torch.Tensor:
    """What its neighbours say about the tag of each word of a linear chain, `(W, K)`, to be added
    to `scores`.

    With `torch.amax` the sum is, up to a constant of each word, the score of the best sequence that
    has the tag, so its maximum is the best sequence (Viterbi); with `torch.logsumexp` it is the
    logarithm of the probability of the tag. All words take one message from each side at once, 16
    times (belief propagation): no loop over the words of a sentence is needed, and sentences of up
    to 17 words are exact.

    Args:
        scores: Of K tags for each of W words, `(W, K)`.
        transitions: Of a tag (row) and the one after it (column), `(K, K)`.
        documents: The number of the document of each word, `(W,)`, rising.
        join: How the possible tags of a neighbour are joined.
    """
    has_left = (F.pad(documents, (1, 0), value=-1)[:-1] == documents)[:, None]  # (W, 1)
    has_right = (F.pad(documents, (0, 1), value=-1)[1:] == documents)[:, None]  # (W, 1)
    from_left = from_right = torch.zeros_like(scores)
    for _ in range(_REACH):
        to_right = _without_constant(_passed_on(scores + from_left, transitions, join))  # (W, K)
        to_left = _without_constant(_passed_on(scores + from_right, transitions.T, join))  # (W, K)
        from_left = F.pad(to_right, (0, 0, 1, 0))[:-1] * has_left
        from_right = F.pad(to_left, (0, 0, 0, 1))[1:] * has_right
    return from_left + from_right


def _passed_on(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    join: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """`join` over the tags of each word of `scores` `(W, K)` with the transitions to each other
    tag, `(W, K)`.

    Sums of probabilities are a product of matrices. Of maxima, as many words as memory allows are
    joined at a time.
    """
    if join is torch.logsumexp:
        best, most = scores.amax(-1, keepdim=True), transitions.amax()
        found = (scores - best).exp() @ (transitions - most).exp()
        return found.clamp(min=torch.finfo(found.dtype).tiny).log() + best + most
    if is_tracing(scores):
        return join(scores[:, :, None] + transitions, 1)
    parts = scores.split(max(1, _PAIRS_AT_ONCE // transitions.numel()))
    # The gradient of `max` needs the places of the maxima, that of `amax` all scores.
    best_of = join if not torch.is_grad_enabled() else lambda pairs, dim: pairs.max(dim).values
    return torch.cat([best_of(part[:, :, None] + transitions, 1) for part in parts])


def _without_constant(messages: torch.Tensor) -> torch.Tensor:
    return messages - messages.amax(-1, keepdim=True)


class RoFormerLiteTextScores(nn.Module):
    """A table of features of the text with a row of scores for each,
    `config.classifier_text_features` rows.

    A feature is known by a hash of 31 bits. The scores are zero at first. `roformer-lite train`
    fits them; gradients reach them as well.
    """

    hashes: torch.Tensor
    token_bytes: torch.Tensor

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        rows = config.classifier_text_features
        self.weight = nn.Parameter(torch.zeros(rows, num_labels))
        self.bias = nn.Parameter(torch.zeros(num_labels))
        self.register_buffer("hashes", torch.arange(rows))  # rising
        self.register_buffer(
            "token_bytes", torch.zeros(config.vocab_size, LONGEST_TOKEN, dtype=torch.uint8)
        )

    def initialize_own_weights(self, std: float) -> None:
        """Scores of nothing, for what a checkpoint lacks."""
        for tensor in (self.weight, self.bias, self.token_bytes):
            init.zeros_(tensor)
        init.copy_(self.hashes, torch.arange(self.hashes.shape[0]))

    def resize_vocabulary(self, size: int) -> None:
        """Room for `size` tokens; new ones have no bytes and so no text."""
        self.token_bytes = F.pad(self.token_bytes, (0, 0, 0, size - len(self.token_bytes)))

    def forward(
        self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of an encoder with what the text adds, for the loss; and what is answered,
        which differs for a tagger that decodes. Both have the shape of `logits`.

        Args:
            logits: `(documents, num_labels)` or `(N, num_labels)`.
            token_ids: Of the real tokens, `(N,)`.
            documents: The number of the document of each token, `(N,)`, rising.
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
        """The same for a batch `(B, L)` and `logits` `(documents, num_labels)` or `(B, L,
        num_labels)`; those of padding stay as they are.

        Raises:
            ValueError: without `input_ids`, which tell the text.
        """
        if input_ids is None:
            raise ValueError(
                "inputs_embeds: classifier_text_features reads the text; give input_ids instead."
            )
        tokens = packed_documents(input_ids, attention_mask, position_ids, cu_seq_lens)
        if tokens is not None:
            places = tokens.index  # packed, so that there is one
            documents = tokens.documents()[0]
        else:
            real = (
                attention_mask.to(input_ids.device)
                if is_padding_mask(attention_mask)
                else torch.ones_like(input_ids)
            )
            places = places_where(real.flatten() != 0)
            documents = places // input_ids.shape[1]
        token_ids = input_ids.flatten()[places]
        if logits.ndim == 2:
            return self(logits, token_ids, documents)
        flat = logits.flatten(0, 1)
        joint, answers = (  # exporters have no `index_copy` of a size that depends on data
            flat.scatter(0, places[:, None].expand_as(found), found).view_as(logits)
            for found in self(flat[places], token_ids, documents)
        )
        return joint, answers

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        """The hash of each feature, known or not, and its owner, a document or a token; each
        `(K,)`. A feature that occurs several times is there as often."""
        raise NotImplementedError

    def words_of(self, token_ids: torch.Tensor, documents: torch.Tensor) -> Words:
        return Words.of_tokens(self.token_bytes, token_ids, documents)

    def score(self, words: Words, num_owners: int) -> torch.Tensor:
        """The sum of the scores of each owner's features, each once, and a bias, `(num_owners,
        num_labels)`."""
        if not self.hashes.shape[0]:
            return self.bias.expand(num_owners, -1)
        keys, owners = self.find_features(words)
        places = places_in(self.hashes, keys).clamp(max=self.hashes.shape[0] - 1)
        known = places_where(self.hashes[places] == keys)
        occurring = owners[known] * self.hashes.shape[0] + places[known]
        found, counts = torch.unique(occurring, return_counts=True)  # by rising owner
        rows, owners = found % self.hashes.shape[0], found // self.hashes.shape[0]  # each (K,)
        weights = self.weigh(rows, counts, owners, num_owners)  # (K,)
        if is_tracing(rows):  # exporters have no bags
            scores = self.weight[rows] * weights[:, None]
            return (
                scores.new_zeros(num_owners, scores.shape[1]).index_add(0, owners, scores)
                + self.bias
            )
        offsets = torch.searchsorted(owners, torch.arange(num_owners, device=owners.device))
        return (
            F.embedding_bag(rows, self.weight, offsets, mode="sum", per_sample_weights=weights)
            + self.bias
        )

    def weigh(
        self, rows: torch.Tensor, counts: torch.Tensor, owners: torch.Tensor, num_owners: int
    ) -> torch.Tensor:
        """How much each of the features found counts, `(K,)`; each was found `counts` times."""
        return torch.ones_like(rows, dtype=self.weight.dtype)


class RoFormerLiteDocumentScores(RoFormerLiteTextScores):
    """Scores of a document's n-grams, added to the logits of a classifier.

    The n-grams are one to three words, and of each word of two bytes or more its substrings of 2 to
    5 bytes and its first and last 1 to 4 bytes; ASCII letters count as lower case. Each has the
    weight `rarity`, with `config.classifier_text_counts` times one plus the logarithm of how often
    it occurs, and the weights of a document have the Euclidean norm 1.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.counts_repeated = config.classifier_text_counts
        self.register_buffer("rarity", torch.ones(config.classifier_text_features))

    def initialize_own_weights(self, std: float) -> None:
        super().initialize_own_weights(std)
        init.ones_(self.rarity)

    def forward(
        self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        joint = logits + self.score(self.words_of(token_ids, documents), logits.shape[0])
        return joint, joint

    def weigh(
        self, rows: torch.Tensor, counts: torch.Tensor, owners: torch.Tensor, num_owners: int
    ) -> torch.Tensor:
        weights = self.rarity[rows]
        if self.counts_repeated:
            weights = weights * (1 + counts.to(weights.dtype).log())
        norms = weights.new_zeros(num_owners).index_add(0, owners, weights.square()).sqrt()
        return weights / norms[owners]

    def find_features(self, words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        keys, owners = zip(*self.find_ngrams(words), strict=True)
        return torch.cat(keys), torch.cat(owners)

    def find_ngrams(self, words: Words) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The features of `find_features` by their sort: one or two words, three words, parts of
        words with several characters, parts of others."""
        text = words.lower()  # (S,)
        hashes, owners = words.hash_words(text), words.documents  # each (W,)
        pairs, triples = (
            places_where(owners == F.pad(owners, (0, n), value=-1)[n:]) for n in (1, 2)
        )
        of_two = join(hashes[pairs], hashes[pairs + 1])
        of_three = seeded(join(join(hashes[triples], hashes[triples + 1]), hashes[triples + 2]), 30)
        return [
            (torch.cat([hashes, of_two]), torch.cat([owners, owners[pairs]])),
            (of_three, owners[triples]),
            *self._parts_of_words(words, text),
        ]

    def _parts_of_words(
        self, words: Words, text: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        keys, of = [], []
        is_long = (words.ends - words.starts > 1)[words.word_of_byte]  # (S,)
        places = torch.arange(text.shape[0], device=text.device)
        is_first = places == words.starts[words.word_of_byte]
        left = words.ends[words.word_of_byte] - places
        for length, (windows, fits) in enumerate(words.parts(text, max(_CHARACTER_NGRAMS)), 1):
            sorts = [(length, is_long & fits)] if length in _CHARACTER_NGRAMS else []
            if length in _AFFIXES:
                sorts += [
                    (10 + length, is_long & fits & is_first),
                    (20 + length, is_long & (left == length)),
                ]
            for seed, condition in sorts:
                chosen = places_where(condition)
                keys.append(seeded(windows, seed)[chosen])
                of.append(words.word_of_byte[chosen])
        all_keys, all_of = torch.cat(keys), torch.cat(of)
        leads = (_KINDS.to(text.device)[text] != _INNER).long()
        characters = torch.zeros_like(words.starts).index_add(0, words.word_of_byte, leads)[all_of]
        by_size = places_where(characters > 1), places_where(characters < 2)
        return [(all_keys[chosen], words.documents[all_of[chosen]]) for chosen in by_size]


class RoFormerLiteWordScores(RoFormerLiteTextScores):
    """Scores of words and of the tags that follow one another, added to the logits of a tagger: a
    conditional random field (Lafferty et al. 2001, ICML) above the encoder.

    The features of a word are the word with its capitals and without, its shape, its first and last
    1 to 4 bytes, the pairs with the words beside it, and of two words to each side the word and its
    shape. Each token has those of its first word. `transitions` hold between the tokens that words
    begin with; see `messages_of_neighbours`.

    With `config.decode_tags` a word is what stands between two spaces, as in the training data, and
    what is answered is one tag for each: tokens inside a word have the answer of its first token,
    with I-X in place of B-X, and those of spaces continue an entity or none. A transition of
    `IMPOSSIBLE` never happens: an I-X that could not stand where it does is B-X. So all ways to put
    tokens together find the same entities, those of transformers' pipeline too.
    """

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__(config, num_labels)
        self.transitions = nn.Parameter(torch.zeros(num_labels, num_labels))
        self.decodes = config.decode_tags
        id2label: dict[int, str] = dict(config.id2label or {})
        names = [str(id2label.get(number)) for number in range(num_labels)]
        places = {name: number for number, name in enumerate(names)}
        # For each tag: B-X for I-X, and the other way round; other tags, and where there is none,
        # the tag itself.
        self.begins = [
            places.get("B" + name[1:], i) if name[:2] == "I-" else i for i, name in enumerate(names)
        ]
        self.inside = [
            places.get("I" + name[1:], i) if name[:2] == "B-" else i for i, name in enumerate(names)
        ]
        # What a space before a word with this tag has.
        self.before = [
            i if name[:2] == "I-" else places.get("O", i) for i, name in enumerate(names)
        ]

    def initialize_own_weights(self, std: float) -> None:
        super().initialize_own_weights(std)
        init.zeros_(self.transitions)

    def words_of(self, token_ids: torch.Tensor, documents: torch.Tensor) -> Words:
        words = super().words_of(token_ids, documents)
        if self.decodes:
            words.is_first = self.roles_of(token_ids, documents)[0]
        return words

    def roles_of(
        self, token_ids: torch.Tensor, documents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each token whether a word between spaces begins with it, whether it stands inside one,
        and whether it is nothing but space; each `(N,)`. Special tokens are none of these."""
        characters = self.token_bytes[token_ids].long()  # (N, LONGEST_TOKEN)
        sizes = (characters != 0).sum(1)
        is_text = _KINDS.to(characters.device)[characters] != _BLANK
        has_text = is_text.any(1)
        ends_in_text = is_text.gather(1, (sizes - 1).clamp(min=0)[:, None])[:, 0]
        follows = F.pad(ends_in_text, (1, 0))[:-1] & (
            F.pad(documents, (1, 0), value=-1)[:-1] == documents
        )
        begins = has_text & ~(is_text[:, 0] & follows)
        return begins, has_text & ~begins, ~has_text & (characters[:, 0] != SEPARATOR)

    def forward(
        self, logits: torch.Tensor, token_ids: torch.Tensor, documents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.words_of(token_ids, documents)
        joint = logits + self.score(words, logits.shape[0])  # (N, num_labels)
        first = places_where(words.is_first)  # (W,)
        of_first = joint[first]  # (W, num_labels)
        messages = messages_of_neighbours(of_first, self.transitions, documents[first])
        joint = joint.index_add(0, first, messages)
        if not self.decodes or self.training:
            return joint, joint
        return joint, self.decode(joint, documents, *self.roles_of(token_ids, documents))

    def decode(
        self,
        joint: torch.Tensor,
        documents: torch.Tensor,
        is_first: torch.Tensor,
        is_inside: torch.Tensor,
        is_space: torch.Tensor,
    ) -> torch.Tensor:
        """The logits whose maxima are the answers, `(N, num_labels)`; see the class.

        Args:
            joint: Of all tokens, `(N, num_labels)`.
            documents: Of all tokens, `(N,)`, rising.
            is_first, is_inside, is_space: As `roles_of` gives them.
        """
        first = places_where(is_first)  # (W - 1,)
        # After the last word stands one of no document, as there may be no word, of which exported
        # graphs are wrong.
        of_words = F.pad(joint[first], (0, 0, 0, 1))  # (W, num_labels)
        owners = F.pad(documents[first], (0, 1), value=-1)  # (W,)
        begins, inside, before = (
            torch.tensor(table, device=joint.device)
            for table in (self.begins, self.inside, self.before)
        )
        forbidden = self.transitions < IMPOSSIBLE / 2  # (num_labels, num_labels)
        has_left = F.pad(owners, (1, 0), value=-2)[:-1] == owners  # (W,)
        tags = of_words.argmax(-1)  # (W,)
        left = F.pad(tags, (1, 0))[:-1]
        # Nothing before a word is like a tag that it can't follow.
        after_left = forbidden.flatten()[left * self.transitions.shape[0] + tags]
        is_wrong = (after_left & has_left) | (forbidden.any(0)[tags] & ~has_left)
        repaired = torch.where(is_wrong, begins[tags], tags)
        of_words = _exchanged(of_words, tags, repaired)
        of_rest = _exchanged(of_words, repaired, inside[repaired])
        # The mean over the tokens of a word must find the answer too: B-X, where an entity begins
        # right after another of its type; and not a third tag that is nearly as good, which an
        # exchange would help. In these two cases B-X and I-X are as good as equal after the first
        # token.
        continued = inside[repaired]
        adjoins = has_left & (inside[F.pad(repaired, (1, 0))[:-1]] == continued)
        both = torch.stack((repaired, continued), 1)  # (W, 2)
        shares = of_words.float().softmax(-1)
        is_close = shares.gather(1, both).sum(1) < 2.01 * shares.scatter(1, both, 0.0).amax(1)
        shared = of_words - of_words.gather(1, both[:, :1])
        slightly = torch.full_like(shared[:, :1], _SLIGHTLY)
        shared = shared.scatter(1, both[:, :1], -slightly).scatter(1, both[:, 1:], slightly)
        is_shared = (repaired != continued) & (adjoins | is_close)
        of_rest = torch.where(is_shared[:, None], shared, of_rest)

        # (N,) the word after a token that is space, and one more than its word for others
        after = is_first.cumsum(0)
        word = (after - 1).clamp(min=0)
        found = torch.where(is_first[:, None], of_words[word], joint)
        found = torch.where(is_inside[:, None], of_rest[word], found)
        own = joint.argmax(-1)  # (N,)
        of_space = before[torch.where(owners[after] == documents, repaired[after], begins[own])]
        return torch.where(is_space[:, None], _exchanged(joint, own, of_space), found)

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


def _exchanged(logits: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Rows `(R, K)` in which the columns `left` and `right` `(R,)` have changed places."""
    left, right = left[:, None], right[:, None]
    return logits.scatter(1, left, logits.gather(1, right)).scatter(
        1, right, logits.gather(1, left)
    )


def _moved(values: torch.Tensor, owners: torch.Tensor, distance: int) -> torch.Tensor:
    """What stands `distance` words further on, `(W,)`; 0 beyond the document."""
    outside = values.shape[0]
    places = torch.arange(outside, device=values.device) + distance
    places = torch.where(places >= 0, places, outside).clamp(max=outside)
    values, beside = F.pad(values, (0, 1)), F.pad(owners, (0, 1), value=-1)
    return torch.where(beside[places] == owners, values[places], 0)


TEXT_SCORES.update(document=RoFormerLiteDocumentScores, word=RoFormerLiteWordScores)
