"""Simple means for seq2seq: copying the source, and the target of the most similar source of the training data."""

from collections.abc import Mapping, Sequence

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import NearestNeighbors

from ..metrics import translation_metrics
from . import Baselines, at_most

_MOST_PAIRS = 50_000

Pairs = tuple[Sequence[str], Sequence[str]]  # sources and targets


def text_to_text_baselines(bleu_tokenizer: str, train: Pairs, measured: Mapping[str, Pairs]) -> Baselines:
    """Figures of an output equal to the input, and of the target that belongs to the nearest known source.

    Sources are near by the cosine of their character n-grams, weighted by TF-IDF.

    Args:
        bleu_tokenizer: As for `translation_metrics`.
        train: Sources and targets to remember; 50,000 pairs at most are used.
        measured: Sources and targets of each split to measure.
    """
    known, answers = (at_most(side, _MOST_PAIRS) for side in train)
    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    memory = NearestNeighbors(n_neighbors=1, metric="cosine").fit(features.fit_transform(known))

    def nearest(sources: Sequence[str]) -> list[str]:
        places = memory.kneighbors(features.transform(sources), return_distance=False)
        return [answers[place] for place in places[:, 0].tolist()]

    means = {"copying the source": list, "the most similar example": nearest}
    return {
        name: {
            split: translation_metrics(answer(sources), targets, bleu_tokenizer)
            for split, (sources, targets) in measured.items()
        }
        for name, answer in means.items()
    }
