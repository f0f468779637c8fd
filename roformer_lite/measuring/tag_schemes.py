"""The schemes by which tags mark entities, such as IOB2, and which tags may follow each other."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

_ENTITY_TAG = re.compile(r"O|[BIESLU]-.+")
# These schemes also mark the end of an entity.
STRICT_SCHEMES = ("IOBES", "BILOU")


def scheme_of(sentences: Iterable[Sequence[str]]) -> str | None:
    """The scheme by which the tags of sentences mark entities: IOB1, IOB2, IOBES or BILOU. None for
    tags of single tokens, such as parts of speech."""
    kinds = set()
    begun_by_b = 0
    begun_by_i = 0
    for tags in sentences:
        for before, tag in pairwise(["O", *tags]):
            found = _ENTITY_TAG.fullmatch(tag)
            if found is None:
                return None
            kinds.add(tag[0])
            if before[1:] != tag[1:]:
                begun_by_b += tag[0] == "B"
                begun_by_i += tag[0] == "I"
    kinds.discard("O")
    if kinds and kinds <= set("BI"):
        return "IOB1" if begun_by_i > begun_by_b else "IOB2"
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
    found = np.zeros((1 + len(tags), 1 + len(tags)))
    if scheme in (None, "IOB1"):
        return found
    begun = {tag[1:] for tag in tags if tag.startswith("B-")}
    for before, name in enumerate(["", *tags]):
        is_open = name.startswith(("B-", "I-"))
        must_continue = is_open and scheme in STRICT_SCHEMES and name[1:] in begun
        for number, tag in enumerate(["", *tags]):
            continues = tag.startswith(("I-", "E-", "L-")) and tag[1:] in begun
            is_next = is_open and continues and name[1:] == tag[1:]
            if (continues or must_continue) and not is_next:
                found[before, number] = -np.inf
    return found
