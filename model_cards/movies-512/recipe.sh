#!/usr/bin/env bash
# Film reviews, favourable or not (polarity dataset 2.0), by their first 512 and 2,048 tokens.
# `movie_reviews/movie_reviews.zip` is that of NLTK; fold 9 is the test part, fold 8 the validation part.
set -euo pipefail
python - <<'PYTHON'
import csv, re, zipfile
parts = {"train": [], "validation": [], "test": []}
with zipfile.ZipFile("movie_reviews/movie_reviews.zip") as archive:
    for name in sorted(archive.namelist()):
        if match := re.fullmatch(r"movie_reviews/(neg|pos)/cv(\d)\d\d_\d+\.txt", name):
            part = {"8": "validation", "9": "test"}.get(match[2], "train")
            parts[part].append((" ".join(archive.read(name).decode().split()), match[1]))
for part, rows in parts.items():
    with open(f"movies-{part}.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *rows])
PYTHON
for length in 512 2048; do
  roformer-lite train classify \
    --train_file movies-train.csv --validation_file movies-validation.csv --test_file movies-test.csv --seeds 0 1 2 \
    --size tiny --max_length $length --max_tokens_per_batch 8192 --num_train_epochs 4 --learning_rate 1e-3 \
    --output_dir movies-$length --overwrite_output_dir \
    --license cc-by-4.0 --language en --dataset_title "Movie reviews, polarity 2.0, folds 0 to 7, 8 and 9"
done
