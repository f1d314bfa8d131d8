"""Answers of optimum's ORTModel from exports in the hub's layout; see the package.

    python read_optimum.py jobs.json answers.json
    python read_optimum.py --export CLASS FOLDER OUTPUT

A job is {folder, kind, texts, file}; a text is a list if it has several parts.
"""

import json
import sys

import numpy as np
import torch
import transformers
from optimum import onnxruntime as ort

TASKS = {"classify": ("text-classification", ort.ORTModelForSequenceClassification),
         "order": ("text-classification", ort.ORTModelForSequenceClassification),
         "tag": ("token-classification", ort.ORTModelForTokenClassification),
         "fill-mask": ("fill-mask", ort.ORTModelForMaskedLM),
         "answer": ("question-answering", ort.ORTModelForQuestionAnswering),
         "embed": ("", ort.ORTModelForFeatureExtraction),
         "choose": ("", ort.ORTModelForMultipleChoice)}


def vectors(model, tokenizer, text):
    batch = tokenizer(text, return_tensors="pt", truncation=True)
    outputs = model(**batch)
    return outputs.last_hidden_state[0].mean(dim=0).tolist()


def choice(model, tokenizer, parts):
    passage, question, *options = parts
    batch = tokenizer([passage] * len(options), [f"{question} {each}" for each in options],
                      padding=True, return_tensors="pt")
    logits = model(**{name: value[None] for name, value in batch.items()}).logits
    return torch.softmax(logits[0], dim=0).tolist()


def answers(job):
    task, kind = TASKS[job["kind"]]
    model = kind.from_pretrained(job["folder"], file_name=job.get("file"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
    if not task:
        own = vectors if job["kind"] == "embed" else choice
        return [own(model, tokenizer, text) for text in job["texts"]]
    ask = transformers.pipeline(task, model=model, tokenizer=tokenizer)
    if job["kind"] == "answer":
        return [ask(question=question, context=passage, max_answer_len=30, align_to_words=False,
                    handle_impossible_answer=job.get("may_be_impossible", False))
                for question, passage in job["texts"]]
    if job["kind"] == "tag":
        return [ask(text, ignore_labels=[]) for text in job["texts"]]
    if job["kind"] == "fill-mask":
        return [ask(text, top_k=3) for text in job["texts"]]
    return [ask(text if isinstance(text, str) else
                {"text": text[0], "text_pair": text[1]}, top_k=None)
            for text in job["texts"]]


def export(kind, folder, output):
    model = getattr(ort, kind).from_pretrained(folder, export=True)
    model.save_pretrained(output)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(output)


def plain(value):
    return value.item() if isinstance(value, np.generic) else str(value)


if sys.argv[1] == "--export":
    export(*sys.argv[2:])
else:
    with open(sys.argv[1], encoding="utf-8") as stream:
        found = [answers(job) for job in json.load(stream)]
    with open(sys.argv[2], "w", encoding="utf-8") as stream:
        json.dump(found, stream, default=plain)
