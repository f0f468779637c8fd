#!/usr/bin/env bash
# Whether a sentence on a film is positive: MR, with a random tenth as the test part. `sent-conv-torch/` is a copy of
# harvardnlp/sent-conv-torch on GitHub, whose `data/rt-polarity.all` has 0 or 1 and a sentence in each line.
set -euo pipefail
python - <<'PYTHON'
import csv, random
with open("sent-conv-torch/data/rt-polarity.all", encoding="latin-1") as lines:
    rows = [line.rstrip("\n").split(" ", 1) for line in lines]
random.Random(0).shuffle(rows)
tenth = len(rows) // 10
for split, part in (("test", rows[:tenth]), ("train", rows[tenth:])):
    with open(f"mr-{split}.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(
            [("text", "label"), *((text, ("negative", "positive")[int(number)]) for number, text in part)]
        )
PYTHON
roformer-lite train classify --train_file mr-train.csv --test_file mr-test.csv --seeds 0 1 2 \
  --output_dir movie-sentences --overwrite_output_dir \
  --license other --language en --dataset_title "MR, movie review sentences (polarity 1.0)"
