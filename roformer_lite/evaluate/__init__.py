"""What a model is worth: metrics, baselines on the same data, and reports of its mistakes."""
