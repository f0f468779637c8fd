// Classify lines with an exported classifier: node and transformers.js, no Python.
//
//     npm install @huggingface/transformers
//     roformer-lite export reviews reviews-onnx --quantization int8
//     echo "a fine film" | node tutorials/classify_transformers_js.cjs reviews-onnx q8
//
// transformers.js chooses a class by `model_type`, and knows none for this package. A class that it does know for a model
// of one graph, such as RoFormer's, runs any such graph; the labels are those of config.json.

const path = require("node:path");
const { readFileSync } = require("node:fs");
const {
  AutoTokenizer,
  RoFormerForSequenceClassification,
  TextClassificationPipeline,
  env,
} = require("@huggingface/transformers");

async function main(directory, dtype = "fp32") {
  env.allowRemoteModels = false;
  env.localModelPath = path.dirname(path.resolve(directory));
  const name = path.basename(path.resolve(directory));
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await RoFormerForSequenceClassification.from_pretrained(name, { dtype }); // fp32, or q8 for int8
  const classify = new TextClassificationPipeline({ task: "text-classification", model, tokenizer });
  const lines = readFileSync(0, "utf-8").split("\n").filter((line) => line.trim());
  for (const { label, score } of await classify(lines)) {
    console.log(`${label}\t${score.toFixed(4)}`);
  }
}

main(...process.argv.slice(2));
