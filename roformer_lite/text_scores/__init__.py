"""Fits scores of n-grams and words, and weighs them against the encoder."""
