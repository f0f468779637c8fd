"""Configurations, models and tokenizers: the files that travel to the Hub together with weights.

Of the other folders these files import `padding_free` only, and the training of tokenizers when it
is asked for. `hub.py` collects what a bundle needs in one flat folder.
"""
