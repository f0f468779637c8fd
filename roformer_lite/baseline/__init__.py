"""The baselines of classifiers and taggers, which may join the answer of the encoder.

They are fitted by scikit-learn and CRFsuite, saved without pickle, and joined outside the model.
"""
