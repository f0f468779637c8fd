"""Sizes of models by name."""

# Widths and depths of the compact BERTs (Turc et al. 2019, arXiv:1908.08962, table 1), and of BERT
# itself for base.
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "mini": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "small": {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
    },
    "base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}


def preset_fields(name: str) -> dict[str, int]:
    """The sizes of preset `name` (tiny, mini, small or base), as config fields.

    Raises:
        ValueError: when there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} does not exist; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
