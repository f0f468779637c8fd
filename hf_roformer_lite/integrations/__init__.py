"""Entries for the models of this package in the tables of other libraries."""

# In these fields of config.json, sentence-transformers saves the activation of a reranker.
RERANKER_FIELDS = frozenset({"sentence_transformers", "sbert_ce_default_activation_function"})
# The pooling modes of sentence-transformers, and the same poolings as `classifier_pooling`.
POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Older versions have an option for each mode, with a prefix.
POOLING_OPTION = "pooling_mode_"
POOLING_OPTIONS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
