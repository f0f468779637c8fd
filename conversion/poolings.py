"""The names of poolings in other systems, and the same `classifier_pooling`."""

POOLINGS: dict[str, dict[str, str]] = {
    "sentence-transformers": {"mean": "mean", "cls": "cls", "lasttoken": "last"},
    # These versions have an option for each mode.
    "older sentence-transformers": {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_lasttoken": "last",
    },
    "eurobert": {"mean": "mean", "bos": "cls", "late": "late"},
    "modernbert": {"cls": "cls", "mean": "mean"},
    "roformer": {"first": "cls", "last": "last"},
    "ultrabert": {"cls": "cls", "mean": "mean"},
}
