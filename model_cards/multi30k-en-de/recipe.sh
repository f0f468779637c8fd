#!/usr/bin/env bash
# English to German captions. Beside this script's working directory lies `multi30k/`: data/task1/raw of the Multi30k
# repository, whose texts are for non-commercial use.
set -euo pipefail
for split in train val test_2016_flickr; do
  paste <(zcat multi30k/$split.en.gz | tr '\t' ' ') <(zcat multi30k/$split.de.gz | tr '\t' ' ') > $split.tsv
done
roformer-lite train seq2seq \
  --train_file train.tsv --validation_file val.tsv --test_file test_2016_flickr.tsv --column_names source target \
  --vocab_size 4000 --size tiny \
  --config num_hidden_layers=4 hidden_size=192 num_attention_heads=4 gated_mlp=true hidden_act=silu \
  norm_type=rmsnorm intermediate_size=512 hidden_dropout=0.3 scale_embeddings=true initializer_range=0.02 \
  --output_dir multi30k-en-de --overwrite_output_dir --max_steps 5961 \
  --early_stopping_patience 0 --max_tokens_per_batch 4096 --bf16 true \
  --optim muon --learning_rate 6e-3 --warmup_steps 400 --ema_decay 0.998 \
  --training_arguments adam_beta2=0.98 label_smoothing_factor=0.1 generation_num_beams=5 \
  --license cc-by-nc-sa-4.0 --language en de --dataset_title "Multi30k task 1, en-de"
