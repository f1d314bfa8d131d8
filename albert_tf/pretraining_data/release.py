"""Creates records identical to those of the original implementation, in memory: all
random numbers are drawn from one generator in its order."""

import itertools
import time
from typing import Any, Optional, Sequence

from albert_tf.masking.options import CLS, SEP
from albert_tf.masking.reference import RandomSource
from albert_tf.pretraining_data import instances
from albert_tf.pretraining_data.instances import (
    create_instances, Document, Instance, Pieces, Walk)
from albert_tf.pretraining_data.options import (
    DataOptions, InstanceOptions, ONE_SEGMENT)
from albert_tf.pretraining_data.spans import plan_spans, read_span
from albert_tf.pretraining_data.summary import (
    InstanceCounts, check, check_counts, published)
from albert_tf.jobs.progress import Progress
from albert_tf.records import encode
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import RecordWriter
from albert_tf.tokenization import sequences
from albert_tf.tokenization.tokenizer import FullTokenizer


def read_documents(paths: Sequence[str], tokenizer: FullTokenizer
                   ) -> tuple[list[Document], InstanceCounts]:
    """Reads and tokenizes all documents with at least one sentence, in order.

    A document ends at a blank line. If a file does not end in one, its last document
    continues in the next file, as in the original. Equal tokens share one string.
    """
    spans = plan_spans(paths)
    progress = Progress("tokenizing", "bytes", sum(span.num_bytes for span in spans))
    lines, firsts, known = [], [], {}

    for span in spans:
        for block in read_span(paths, span, tokenizer.prepare_batch):
            firsts += [len(lines) + first for first in block.first]
            lines += [[known.setdefault(piece, piece) for piece in tokens]
                      for tokens in tokenizer.tokenize_batch(block.lines)]
        progress.add(span.num_bytes)
    documents = [list(filter(None, lines[first:end])) for first, end in
                 itertools.pairwise([*firsts, len(lines)])]
    documents = list(filter(None, documents))
    sentences = list(filter(None, lines))
    unk_id = tokenizer.unk_id
    unknown = {p for p in known if tokenizer.vocab.get(p, unk_id) == unk_id}
    return documents, InstanceCounts(
        len(documents), len(sentences), sum(map(len, sentences)),
        sum(piece in unknown for sentence in sentences for piece in sentence),
        lines_without_pieces=len(lines) - len(sentences),
        single_sentence_documents=sum(len(document) == 1 for document in documents))


def create_full_sentences(
        documents: Sequence[Document], pieces: Pieces, options: InstanceOptions,
        random: RandomSource) -> Walk:
    """Walks once over documents, one after another, without a sentence objective.

    Each sequence is filled with whole sentences up to its target length. If a document
    ends within a sequence, a [SEP] separates it from the next (RoBERTa, Liu et al.
    2019, section 4.2, FULL-SENTENCES). A sentence longer than the target length becomes
    an instance by itself; only such sentences are truncated.
    """
    # The first sentence of each document follows a [SEP], but in a new sequence.
    sentences = [(sentence, [SEP, *sentence] if index == 0 else sentence)
                 for document in documents for index, sentence in enumerate(document)]
    found, position = [], 0
    while position < len(sentences):
        # 1. Take one sentence, whatever its length, and more while they fit.
        target_length = instances.draw_target_length(options, random)
        text = list(sentences[position][0])
        position += 1
        while position < len(sentences) and (
                len(text) + len(sentences[position][1]) <= target_length):
            text += sentences[position][1]
            position += 1
        # 2. Truncate, which only a single long sentence needs, and mask.
        segment, _ = sequences.truncate_at_random_ends(
            text, [], target_length, random.python)
        found.append(instances.masked_instance(
            sequences.assemble(segment, None, CLS, SEP), ONE_SEGMENT,
            len(text) - len(segment), pieces, options, random))
    return found, []


def features_of(instance: Instance, tokenizer: FullTokenizer,
                options: InstanceOptions) -> dict[str, list]:
    """Returns an instance as the padded values of a record, by their names on disk."""
    slots = options.masking.num_prediction_slots
    labels = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    return {
        **sequences.pad_inputs({
            "input_ids": tokenizer.convert_tokens_to_ids(instance.tokens),
            "input_mask": [1] * len(instance.tokens),
            "segment_ids": instance.segment_ids}, options.max_seq_length),
        "token_boundary": sequences.pad(
            instance.token_boundary, options.max_seq_length),
        "masked_lm_positions": sequences.pad(instance.masked_lm_positions, slots),
        "masked_lm_ids": sequences.pad(labels, slots),
        "masked_lm_weights": sequences.pad([1.0] * len(labels), slots, 0.0),
        "next_sentence_labels": [instance.label],
    }


def create(options: DataOptions, tokenizer: FullTokenizer,
           random: Optional[RandomSource] = None) -> dict[str, Any]:
    """Creates a pretraining data set, as local.create does; returns the summary.
    By default both generators in `random` start from options.random_seed."""
    check(options, tokenizer)
    started = time.monotonic()
    instance_options = options.instances
    random = random or RandomSource.from_seed(options.random_seed)
    documents, counts = read_documents(options.input_files, tokenizer)
    pieces = Pieces(list(tokenizer.vocab), sequences.WordStarts(
        options.word_start if tokenizer.uses_sentencepiece else "wordpiece"))
    spec = pretraining_spec(instance_options.max_seq_length,
                            instance_options.masking.num_prediction_slots)
    # 1. Make the instances of all documents, in a random order; several times.
    random.python.shuffle(documents)
    progress = Progress(
        "instances", "documents", options.dupe_factor * len(documents))
    records: list[bytes] = []
    for copy in range(options.dupe_factor):
        for done, (made, skipped) in enumerate(
                [create_full_sentences(documents, pieces, instance_options, random)]
                if instance_options.sentence_objective == "none" else
                (create_instances(documents, index, pieces, instance_options, random)
                 for index in range(len(documents))), 1 + copy * len(documents)):
            counts.add(made, skipped)
            # A serialized record takes a fraction of an instance's memory.
            rows = [features_of(instance, tokenizer, instance_options)
                    for instance in made]
            records += rows and encode.serialize(
                spec, {name: [row[name] for row in rows] for name in rows[0]})
            progress.update(done, f"{len(records):,} instances so far")
    check_counts(counts, options)
    # 2. Shuffle their records, and deal them out.
    random.python.shuffle(records)
    with published(options, tokenizer, counts, started) as (summary, outputs):
        for number, path in enumerate(outputs):
            with RecordWriter(path) as writer:
                for record in records[number::len(outputs)]:
                    writer.write(record)
    return summary
