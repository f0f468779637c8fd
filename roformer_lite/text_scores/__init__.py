"""Scores of n-grams and words, which are fitted and weighted against the encoder."""
