"""The plugin itself: configurations, models and tokenizers, all that travels to the Hub beside the
weights.

Nothing here imports from another folder of the package, but for what trains a tokenizer, when it is
asked to.
"""
