"""The trainer of each task."""

from importlib import import_module

from .trainer import RoFormerLiteSeq2SeqTrainer, RoFormerLiteTrainer, RoFormerLiteTrainerMixin

_TRAINERS: dict[str, type[RoFormerLiteTrainerMixin]] = {"seq2seq": RoFormerLiteSeq2SeqTrainer}
# The classes of the module `sentence_trainers`, which needs an optional package.
_SENTENCE_TRAINERS = {"embed": "EmbeddingTrainer", "rerank": "RerankingTrainer"}


def trainer_class(task: str) -> type[RoFormerLiteTrainerMixin]:
    """The class of a task's trainer. Its `args_class` is that of the training arguments."""
    if task in _SENTENCE_TRAINERS:
        module = import_module(".sentence_trainers", __package__)
        return getattr(module, _SENTENCE_TRAINERS[task])
    return _TRAINERS.get(task, RoFormerLiteTrainer)
