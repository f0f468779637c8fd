#!/usr/bin/env bash
# 13 fields of science, by the titles of Chinese articles. `csl/cls_ctg/` is `benchmark/cls_ctg` of CSL.
set -euo pipefail
roformer-lite train classify \
  --train_file csl/cls_ctg/train.tsv --validation_file csl/cls_ctg/dev.tsv --test_file csl/cls_ctg/test.tsv \
  --column_names instruction title field --text_column title --label_column field --seeds 0 1 2 \
  --output_dir csl-titles --overwrite_output_dir \
  --license apache-2.0 --language zh --dataset_title "CSL, titles to fields (cls_ctg)"
