"""Scores of the text, fitted on its n-grams and words, and weighed against the encoder."""
