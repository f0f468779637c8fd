"""Entries for RoFormerLite models in the tables of other libraries."""

# In these fields of config.json, sentence-transformers saves the activation of a reranker.
RERANKER_FIELDS = frozenset({"sentence_transformers", "sbert_ce_default_activation_function"})
# The names of each `classifier_pooling` in sentence-transformers: its mode, and the option of older
# versions, which have one for each mode.
POOLINGS = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "cls": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
}


def pooling_named(name: str | None) -> str | None:
    """The `classifier_pooling` with a mode or an option of this name; None if there is none."""
    for pooling, names in POOLINGS.items():
        if name in names:
            return pooling
    return None
