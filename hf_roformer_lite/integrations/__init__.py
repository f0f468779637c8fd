"""Entries for RoFormerLite models in the tables of other libraries."""

# In these fields of config.json, sentence-transformers saves the activation of a reranker.
RERANKER_FIELDS = frozenset({"sentence_transformers", "sbert_ce_default_activation_function"})
