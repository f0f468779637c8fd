// Run by test_hub.py: transformers.js and the graph that lies beside the weights, from the Hub that HF_ENDPOINT names.
//
// node classify_from_hub.cjs REPOSITORY TEXT

const path = require("node:path");
const {
  AutoTokenizer,
  RoFormerForSequenceClassification,
  TextClassificationPipeline,
  env,
} = require("@huggingface/transformers");

async function main(name, text) {
  env.remoteHost = process.env.HF_ENDPOINT;
  env.allowLocalModels = false;
  env.cacheDir = path.join(process.env.HF_HOME, "transformers.js"); // node takes graphs from files
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await RoFormerForSequenceClassification.from_pretrained(name, { dtype: "fp32" });
  const classify = new TextClassificationPipeline({ task: "text-classification", model, tokenizer });
  console.log(JSON.stringify(await classify(text)));
}

main(...process.argv.slice(2));
