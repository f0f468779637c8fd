#!/usr/bin/env bash
# Chinese to English sentences of Tatoeba. `tatoeba_zh_en/split/` holds train, dev and test as English TAB Chinese TAB
# attribution, with no sentence of one part in another.
set -euo pipefail
roformer-lite train seq2seq \
  --train_file tatoeba_zh_en/split/train.tsv.gz --validation_file tatoeba_zh_en/split/dev.tsv \
  --test_file tatoeba_zh_en/split/test.tsv \
  --column_names en zh attribution --source_column zh --target_column en --vocab_size 8000 --size mini \
  --config num_hidden_layers=3 gated_mlp=true hidden_act=silu norm_type=rmsnorm intermediate_size=384 \
  hidden_dropout=0.1 \
  --output_dir tatoeba-zh-en --overwrite_output_dir --max_steps 1217 \
  --max_tokens_per_batch 1600 \
  --learning_rate 2e-3 --warmup_steps 400 --ema_decay 0.997 \
  --training_arguments adam_beta2=0.98 label_smoothing_factor=0.1 generation_num_beams=4 \
  --license apache-2.0 --language zh en --dataset_title "Tatoeba cmn-eng"
