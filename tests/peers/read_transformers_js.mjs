// Answers of transformers.js from exports in the hub's layout; see the package.
//
//     node read_transformers_js.mjs PACKAGE jobs.json answers.json
//
// A job is {folder, kind, texts, dtype}; a text is [question, passage] for answers.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [home, jobs, output] = process.argv.slice(2);
const library = await import(pathToFileURL(path.join(
    home, "node_modules/@huggingface/transformers/dist/transformers.node.mjs")));
library.env.allowRemoteModels = false;

const TASKS = {
    classify: "text-classification", embed: "feature-extraction",
    "fill-mask": "fill-mask", answer: "question-answering" };

async function pipelineOf({ folder, kind, dtype }) {
    library.env.localModelPath = path.dirname(folder);
    const name = path.basename(folder);
    if (kind !== "tag") return library.pipeline(TASKS[kind], name, { dtype });
    // Its pipeline knows no ALBERT for tags: the model's class is given instead.
    return new library.TokenClassificationPipeline({
        task: "token-classification",
        model: await library.AutoModel.from_pretrained(name, { dtype }),
        tokenizer: await library.AutoTokenizer.from_pretrained(name) });
}

async function answer(pipe, kind, text) {
    if (kind === "answer") return pipe(...text);
    if (kind === "embed") return (await pipe(text, { pooling: "mean" })).tolist()[0];
    if (kind === "tag") return pipe(text, { ignore_labels: [] });
    return pipe(text, { top_k: 3 });
}

const found = [];
for (const job of JSON.parse(fs.readFileSync(jobs))) {
    const pipe = await pipelineOf(job);
    const answers = [];
    for (const text of job.texts) answers.push(await answer(pipe, job.kind, text));
    found.push(answers);
}
fs.writeFileSync(output, JSON.stringify(found));
