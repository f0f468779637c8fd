"""The trainer of each task."""

from importlib import import_module

from .trainer import RoFormerLiteSeq2SeqTrainer, RoFormerLiteTrainer

# Classes of the module `sentence_trainers`, which needs an optional package.
_SENTENCE_TRAINERS = {"embed": "EmbeddingTrainer", "rerank": "RerankingTrainer"}


def trainer_class(task: str) -> type[RoFormerLiteTrainer]:
    """The trainer class of a task. Its `args_class` is the class of its training arguments."""
    if task in _SENTENCE_TRAINERS:
        module = import_module(".sentence_trainers", __package__)
        return getattr(module, _SENTENCE_TRAINERS[task])
    if task == "seq2seq":
        return RoFormerLiteSeq2SeqTrainer
    return RoFormerLiteTrainer
