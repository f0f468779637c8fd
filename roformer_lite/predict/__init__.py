"""A saved model that answers, by torch or by another runtime. Begin in `predictor.py`."""
