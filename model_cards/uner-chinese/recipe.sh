#!/usr/bin/env bash
# Persons, places and organisations in Chinese text. `uner_zh_gsdsimp/` has the three parts of UNER_Chinese-GSDSIMP.
set -euo pipefail
python - <<'PYTHON'
import gzip
for split in ("train", "dev", "test"):
    path = f"uner_zh_gsdsimp/zh_gsdsimp-ud-{split}.iob2" + (".gz" if split == "train" else "")
    with (gzip.open if path.endswith("gz") else open)(path, "rt", encoding="utf-8") as lines:
        words = [line.split("\t")[1:3] if line.strip() else [] for line in lines if not line.startswith("# ")]
    with open(f"uner-{split}.conll", "w", encoding="utf-8") as table:
        table.writelines("\t".join(word) + "\n" for word in words)
PYTHON
roformer-lite train tag \
  --train_file uner-train.conll --validation_file uner-dev.conll --test_file uner-test.conll --seeds 0 1 2 \
  --output_dir uner-chinese --overwrite_output_dir \
  --license cc-by-sa-4.0 --language zh --dataset_title "UNER Chinese-GSDSIMP"
