"""Configurations, models and tokenizers: the files that travel to the Hub together with weights.

From outside this folder they import only `padding_free`, and the training of tokenizers when it is
requested. `hub.py` collects what a bundle needs in one flat folder.
"""
