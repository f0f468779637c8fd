#!/usr/bin/env bash
# English to German captions. Beside this script's working directory lies `multi30k/`: data/task1/raw of the Multi30k
# repository. 26.5 minutes of training on two cores; preparation and the final evaluation come on top.
set -euo pipefail
roformer-lite train seq2seq \
  --train_file multi30k/train.en.gz multi30k/train.de.gz \
  --validation_file multi30k/val.en.gz multi30k/val.de.gz \
  --test_file multi30k/test_2016_flickr.en.gz multi30k/test_2016_flickr.de.gz \
  --vocab_size 4000 --size mini \
  --config num_hidden_layers=3 gated_mlp=true hidden_act=silu norm_type=rmsnorm intermediate_size=384 \
  hidden_dropout=0.1 scale_embeddings=true initializer_range=0.02 \
  --output_dir multi30k-en-de --overwrite_output_dir --num_train_epochs 30 --time_limit_minutes 26.5 \
  --max_tokens_per_batch 1600 \
  --learning_rate 2e-3 --warmup_steps 400 --adam_beta2 0.98 --label_smoothing_factor 0.1 --ema_decay 0.997 \
  --generation_num_beams 4 --license apache-2.0 --language en de --dataset_title "Multi30k task 1, en-de"
