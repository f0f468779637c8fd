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
  --train_file clinc150-train.csv --validation_file clinc150-val.csv --test_file clinc150-test.csv \
  --vocab_size 4000 --tokenizer_algorithm wordpiece --size mini --config num_hidden_layers=2 hidden_dropout=0.3 \
  --output_dir clinc150-intents --overwrite_output_dir --num_train_epochs 12 --time_limit_minutes 3 \
  --per_device_train_batch_size 32 --learning_rate 1e-3 --ema_decay 0.995 \
  --license apache-2.0 --datasets clinc/clinc_oos --language en --dataset_title "CLINC150 (oos-eval, full set, in scope)"
