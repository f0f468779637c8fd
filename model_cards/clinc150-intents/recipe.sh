#!/usr/bin/env bash
# 150 intents of CLINC150 (in scope). `clinc150/data_full.json.gz` is the full set of oos-eval.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, json
splits = json.load(gzip.open("clinc150/data_full.json.gz"))
for split in ("train", "val", "test"):
    with open(f"clinc150-{split}.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *splits[split]])
PYTHON
roformer-lite train classify \
  --train_file clinc150-train.csv --validation_file clinc150-val.csv --test_file clinc150-test.csv --seeds 0 1 2 \
  --output_dir clinc150-intents --overwrite_output_dir \
  --license apache-2.0 --datasets clinc/clinc_oos --language en --dataset_title "CLINC150 (oos-eval, full set, in scope)"
