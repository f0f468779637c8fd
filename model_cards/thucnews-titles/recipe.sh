#!/usr/bin/env bash
# Ten sections of Chinese news, by their titles: 45,000 of the 180,000 titles that are often used for training.
# `thucnews_titles/` has train.45k.txt.gz, dev.txt and test.txt with title TAB number, and the names in class.txt.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip
names = open("thucnews_titles/class.txt", encoding="utf-8").read().split()
for split, file in (("train", "train.45k.txt.gz"), ("dev", "dev.txt"), ("test", "test.txt")):
    with (gzip.open if file.endswith("gz") else open)(f"thucnews_titles/{file}", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in lines if line.strip()]
    with open(f"thucnews-{split}.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *((title, names[int(number)]) for title, number in rows)])
PYTHON
roformer-lite train classify \
  --train_file thucnews-train.csv --validation_file thucnews-dev.csv --test_file thucnews-test.csv --seeds 0 1 2 \
  --output_dir thucnews-titles --overwrite_output_dir \
  --license other --language zh --dataset_title "THUCNews titles, 45,000 of 180,000"
