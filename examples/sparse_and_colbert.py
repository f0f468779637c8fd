"""Train sparse embeddings (SPLADE) or late interaction (ColBERT) with sentence-transformers' own
trainers.

    roformer-lite train mlm --train_file text.txt --output_dir language
    python examples/sparse_and_colbert.py sparse language pairs.csv splade
    python examples/sparse_and_colbert.py colbert language pairs.csv late

The second argument is a model of this package or of transformers (sparse needs one with a masked-LM
head), the third a table with the columns anchor and positive, and optionally negative.
"""

import argparse

import sentence_transformers as st
from datasets import Dataset, load_dataset
from sentence_transformers.multi_vector_encoder.losses import (
    MultiVectorMultipleNegativesRankingLoss,
)
from sentence_transformers.sparse_encoder.callbacks import SpladeRegularizerWeightSchedulerCallback
from sentence_transformers.sparse_encoder.losses import (
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)

import hf_roformer_lite  # noqa: F401  makes the architecture known to transformers

# Weights of the penalty on non-zero weights of queries and documents, as in the documentation of
# sentence-transformers.
QUERY_WEIGHT, DOCUMENT_WEIGHT = 5e-5, 3e-5


def train_sparse(model_name: str, rows: Dataset, output_dir: str, **arguments) -> st.SparseEncoder:
    """A weight for each token of the vocabulary, most of them zero."""
    model = st.SparseEncoder(model_name, device="cpu" if arguments.get("use_cpu") else None)
    loss = SpladeLoss(
        model, SparseMultipleNegativesRankingLoss(model), DOCUMENT_WEIGHT, QUERY_WEIGHT
    )
    args = st.SparseEncoderTrainingArguments(f"{output_dir}.training", **arguments)
    callbacks = [SpladeRegularizerWeightSchedulerCallback(loss)]
    st.SparseEncoderTrainer(model, args, train_dataset=rows, loss=loss, callbacks=callbacks).train()
    model.save_pretrained(output_dir)
    return model


def train_colbert(
    model_name: str, rows: Dataset, output_dir: str, **arguments
) -> st.MultiVectorEncoder:
    """A vector for each token; a pair of texts is scored by the best match of each token of the
    query."""
    model = st.MultiVectorEncoder(model_name, device="cpu" if arguments.get("use_cpu") else None)
    args = st.MultiVectorEncoderTrainingArguments(f"{output_dir}.training", **arguments)
    loss = MultiVectorMultipleNegativesRankingLoss(model)
    st.MultiVectorEncoderTrainer(model, args, train_dataset=rows, loss=loss).train()
    model.save_pretrained(output_dir)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("sparse", "colbert"))
    parser.add_argument("model", help="where the training starts: a directory or a name on the Hub")
    parser.add_argument(
        "pairs", help="a .csv file with the columns anchor and positive, and optionally negative"
    )
    parser.add_argument("output_dir")
    parser.add_argument("--num_train_epochs", type=float, default=3)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--per_device_train_batch_size", type=int, default=64)
    parser.add_argument("--use_cpu", action="store_true")
    options = vars(parser.parse_args())
    train = {"sparse": train_sparse, "colbert": train_colbert}[options.pop("kind")]
    rows = load_dataset("csv", data_files=options.pop("pairs"), split="train")
    train(
        options.pop("model"),
        rows,
        options.pop("output_dir"),
        warmup_steps=0.1,
        batch_sampler="no_duplicates",
        report_to="none",
        save_strategy="no",
        **options,
    )


if __name__ == "__main__":
    main()
