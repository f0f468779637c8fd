"""The schemes by which tags mark entities, such as IOB2, and which tags may follow each other."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

_ENTITY_TAG = re.compile(r"O|[BIESLU]-.+")
# These schemes also mark the end of an entity.
STRICT_SCHEMES = ("IOBES", "BILOU")


def scheme_of(sentences: Iterable[Sequence[str]]) -> str | None:
    """The scheme by which the tags of sentences mark entities: IOB1, IOB2, IOBES or BILOU. None for
    tags of single tokens, such as parts of speech."""
    # How many entities begin with each kind of tag; 0 for a kind that is only inside them.
    begun: Counter[str] = Counter()
    for tags in sentences:
        for before, tag in pairwise(["O", *tags]):
            if not _ENTITY_TAG.fullmatch(tag):
                return None
            begun[tag[0]] += before[1:] != tag[1:]
    kinds = begun.keys() - {"O"}
    if kinds and kinds <= set("BI"):
        return "IOB1" if begun["I"] >= begun["B"] else "IOB2"
    # Tags that mark the end of an entity, but no beginning, have none of these schemes.
    return next(
        (name for name in STRICT_SCHEMES if kinds & set("BSU") and kinds <= set(name)), None
    )


def legal_transitions(tags: Sequence[str], scheme: str | None) -> np.ndarray:
    """Which tag may follow which: 0 where it may, minus infinity where it may not,
    `(1 + tags before, 1 + tags)`. The first row is for the beginning of a sentence, and the first
    column for its end.

    Only B-X and I-X may come before I-X, E-X and L-X. In IOBES and BILOU, one of these three must
    come after B-X and I-X. In IOB1, an entity may begin with I-X; so may one whose B-X is not among
    the tags. Tags without a scheme may follow all others.

    Args:
        tags: The tags in the order of their numbers.
        scheme: The scheme by which they mark entities, as returned by `scheme_of`.
    """
    if scheme in (None, "IOB1"):
        return np.zeros((1 + len(tags), 1 + len(tags)))
    # An open entity, and one that a tag continues, must be of the same type.
    opened = _types(tags, "BI")[:, None]
    continued = _types(tags, "IEL")
    is_legal = opened == continued
    if scheme not in STRICT_SCHEMES:
        is_legal |= continued == ""
    return np.where(is_legal, 0, -np.inf)


def _types(tags: Sequence[str], kinds: str) -> np.ndarray:
    """The type of entity of each tag of these kinds, `(1 + tags,)`; empty for other tags, for types
    that never begin with B, and for the edge of a sentence, which comes first."""
    begun = {tag[1:] for tag in tags if tag.startswith("B-")}
    found = [tag[1:] if tag[0] in kinds and tag[1:] in begun else "" for tag in tags]
    return np.array(["", *found])
