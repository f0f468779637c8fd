"""Evaluates models: metrics, baselines on the same data, and reports of mistakes."""
