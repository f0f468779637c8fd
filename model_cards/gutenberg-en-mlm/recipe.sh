#!/usr/bin/env bash
# A masked language model of 14 English books; three whole books are held out, one to watch and two to measure on.
# `gutenberg_en/gutenberg.tar.gz` holds one text file a book.
set -euo pipefail
tar xzf gutenberg_en/gutenberg.tar.gz
mkdir -p held_out && mv gutenberg/{chesterton-thursday,carroll-alice,austen-persuasion}.txt held_out
roformer-lite train mlm \
  --train_file gutenberg/*.txt --validation_file held_out/chesterton-thursday.txt \
  --test_file held_out/carroll-alice.txt held_out/austen-persuasion.txt \
  --block_size 128 --vocab_size 8000 --size mini --config hidden_dropout=0.0 \
  --output_dir gutenberg-en-mlm --overwrite_output_dir --max_steps 989 \
  --per_device_train_batch_size 32 --learning_rate 1e-3 --warmup_steps 200 --training_arguments adam_beta2=0.98 \
  --license apache-2.0 --language en --dataset_title "Gutenberg selection of NLTK (14 of 17 books)"
