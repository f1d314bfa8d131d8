r"""Scores tags of words that a linear model predicts from a frozen encoder's vectors.

    python -m experiments.frozen_tags --model=quality_runs/release_1 \
        --spm_model_file=quality_runs/spm.model --train_file=ud_partut/train.conllu \
        --dev_file=ud_partut/dev.conllu --output_dir=quality_runs/release_1/partut

The vector of a word is that of its first token after the last layer. Logistic regression
learns the tags from these vectors, standardized; the encoder does not change. If tags mark
entities, which are rare, each tag counts with the inverse root of its frequency: without
such weights no entity at all is found from vectors of small models. The scores are those
of run_tagger.py: accuracy, and F1 if tags mark entities. Used by
time_to_quality.py: unlike fine-tuning, it shows what pretraining has left in the vectors.
"""

import collections
import os
from typing import Sequence

import numpy as np
from absl import flags

from albert_tf import files, text_files
from albert_tf.cli import script
from albert_tf.finetuning.tagging import task as tagging

FLAGS = flags.FLAGS
flags.DEFINE_string("model", None, "Folder or checkpoint of the model.", required=True)
flags.DEFINE_string("spm_model_file", None, "Its vocabulary.", required=True)
for _split in ("train", "dev"):
    flags.DEFINE_string(f"{_split}_file", None, f"Sentences with tags, {_split}.",
                        required=True)
flags.DEFINE_string("output_dir", None, "Folder for the scores.", required=True)
flags.DEFINE_integer("max_seq_length", 64, "Maximum length of a sequence in tokens.",
                     lower_bound=3)

BATCH_SIZE = 64


def word_vectors(encoder, tokenizer, task: tagging.TaggingTask, sentences: Sequence
                 ) -> np.ndarray:
    """Returns the vector of each word of the sentences, in their order: [words, H]."""
    windows = [(number, window) for number, sentence in enumerate(sentences)
               for window in task.featurize(sentence, tokenizer=tokenizer)]
    vectors = {}
    for begin in range(0, len(windows), BATCH_SIZE):
        batch = windows[begin:begin + BATCH_SIZE]
        inputs = {name: np.array([
            np.pad(window[name], [0, task.max_seq_length - len(window[name])])
            for _, window in batch], np.int32)
                  for name in ("input_ids", "input_mask", "segment_ids")}
        states = encoder(inputs)["sequence_output"].numpy()
        for (number, window), state in zip(batch, states):
            for word, place in zip(window["word_index"], window["word_place"]):
                vectors[number, word] = state[place]
    return np.array([vectors[key] for key in sorted(vectors)])


def scores(model: str, vocabulary: str, train_file: str, dev_file: str,
           max_seq_length: int) -> dict[str, float]:
    """Returns the scores on `dev_file` of tags learned from `train_file`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from albert_tf.checkpoints.load import load
    from albert_tf.tokenization.tokenizer import FullTokenizer

    loaded = load(model)
    encoder = getattr(loaded.model, "bert", loaded.model)
    tokenizer = FullTokenizer(None, spm_model_file=vocabulary)
    task = tagging.build_task(train_file, max_seq_length=max_seq_length)
    train, dev = (task.read(path, split).examples
                  for path, split in ((train_file, "train"), (dev_file, "dev")))
    tags = [tag for sentence in train for tag in sentence.tags]
    weights = None
    if task.scheme != "none":
        counts = collections.Counter(tags)
        weights = {tag: (len(tags) / len(counts) / count) ** 0.5
                   for tag, count in counts.items()}
    learner = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=300, class_weight=weights))
    learner.fit(word_vectors(encoder, tokenizer, task, train), tags)
    found = iter(learner.predict(word_vectors(encoder, tokenizer, task, dev)).tolist())
    tagged = [tagging.Tagged([next(found) for _ in sentence.words],
                             [1.0] * len(sentence.words)) for sentence in dev]
    return task.metrics_of(task.counts(dev, tagged))


def main(_):
    files.make_directory(FLAGS.output_dir, "--output_dir")
    found = scores(FLAGS.model, FLAGS.spm_model_file, FLAGS.train_file, FLAGS.dev_file,
                   FLAGS.max_seq_length)
    print(found)
    text_files.write_json(os.path.join(FLAGS.output_dir, "eval_results.json"), found)


if __name__ == "__main__":
    script.run(main)
