"""Pretraining records in two steps, each a function of a part of the data.

    span of text --scatter--> packs: instances with their tokens, sorted by bucket
    a bucket of all packs --records--> masked records, sorted by a random number

An instance's bucket is given by the highest bits of its random number, so the order of
buckets and the order within each make a uniform shuffle of all instances.
"""

import math
from typing import Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf.masking.batched import mask_batch
from albert_tf.masking.options import SpecialIds
from albert_tf.pretraining_data.encoder import PieceEncoder, sums_before
from albert_tf.pretraining_data.job_options import DataOptions, Sizes
from albert_tf.pretraining_data.options import InstanceOptions
from albert_tf.pretraining_data.plans import Documents, plan_chunks
from albert_tf.pretraining_data.spans import Span, read_span
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts
from albert_tf.records import encode
from albert_tf.records.spec import pretraining_spec
from albert_tf.tokenization.sequences import assemble_batch
from albert_tf.tokenization.tokenizer import FullTokenizer

# An instance without its tokens. Its random number, the key for its masks, the lengths
# of both segments, and its label (plans.PLAN).
ROW = np.dtype([("order", "<u8"), ("mask", "<u8"), ("length_a", "<u4"),
                ("length_b", "<u4"), ("label", "u1")])
_ROWS_PER_BATCH = 512  # Arrays of this size stay in the processor's cache.
_TEXT_BYTES_PER_CODE_BYTE = 2
# Bytes of a bucket in each pack, unless the bucket would be too large for memory.
_BYTES_AT_ONCE = 1 << 14
_LARGEST_BUCKET = 128 << 20


class Pack(NamedTuple):
    """N instances made from a slice of documents, sorted by their random numbers."""

    rows: np.ndarray  # ROW [N]
    codes: np.ndarray  # [C]; the codes of each first and second segment in turn
    first_row: np.ndarray  # int64 [num_buckets + 1], of each bucket
    first_code: np.ndarray  # int64 [num_buckets + 1]


def num_buckets(text_bytes: int, dupe_factor: int, sizes: Sizes = Sizes()) -> int:
    """Returns the number of buckets for this many bytes of text: a power of two."""
    num_bytes = text_bytes * dupe_factor // _TEXT_BYTES_PER_CODE_BYTE
    size = min(max(math.isqrt(num_bytes * _BYTES_AT_ONCE), sizes.bucket_bytes),
               _LARGEST_BUCKET)
    return 1 << max(0, -(-num_bytes // size) - 1).bit_length()


def slices(paths: Sequence[str], span: Span, encoder: PieceEncoder,
           counts: CorpusCounts, size: int) -> Iterator[Documents]:
    """Yields the documents of a span, at least `size` tokens at a time. One of several
    times that size is continued in the next slice as another."""
    # Codes, tokens in each line, lines at which documents begin, and their ids.
    held: list[tuple[np.ndarray, np.ndarray, Sequence[int], Sequence[int]]] = []
    num_codes = 0
    for block in read_span(paths, span, encoder.prepare):
        codes, lengths, unknown = encoder.encode(block.lines)
        counts.unknown_pieces += unknown
        first, ids = block.first, block.ids
        if num_codes >= 4 * size and first[:1] != [0]:
            documents = _documents(held, encoder.separator, counts)
            yield documents
            # Sentences are no more than bytes, so no other document has this id.
            sentences = np.diff(documents.first_sentence)[-1]
            next_id = int(documents.ids[-1]) + int(sentences)
            held, num_codes = [(codes[:0], lengths[:0], [0], [next_id])], 0
            counts.documents -= 1
        if first and num_codes >= size:
            # The block's last document begins the next slice.
            line, code = first[-1], int(lengths[:first[-1]].sum())
            held.append((codes[:code], lengths[:line], first[:-1], ids[:-1]))
            yield _documents(held, encoder.separator, counts)
            held, num_codes = [], 0
            codes, lengths, first, ids = codes[code:], lengths[line:], [0], ids[-1:]
        held.append((codes, lengths, first, ids))
        num_codes += len(codes)
    if held:
        yield _documents(held, encoder.separator, counts)


def _documents(held: Sequence[tuple], separator: int,
               counts: CorpusCounts) -> Documents:
    """Returns the documents that have a sentence, and counts them."""
    codes, lengths, first, ids = zip(*held)
    lines = sums_before(list(map(len, lengths)))
    starts = [line + i for each, line in zip(first, lines.tolist()) for i in each]
    lengths = np.concatenate(lengths)
    sentences = sums_before(lengths > 0)
    first = sentences[[*starts, len(lengths)]]
    filled = np.flatnonzero(np.diff(first))
    first = np.append(first[filled], sentences[-1])
    lengths = lengths[lengths > 0]
    codes = np.concatenate(codes)
    counts.documents += len(filled)
    counts.single_sentence_documents += int((np.diff(first) == 1).sum())
    counts.documents_alone += len(filled) == 1
    counts.sentences += len(lengths)
    counts.pieces += len(codes)
    counts.lines_without_pieces += int(lines[-1]) - len(lengths)
    return Documents(
        np.insert(codes, sums_before(lengths)[first[1:]], separator), lengths, first,
        np.array([i for each in ids for i in each], np.uint64)[filled])


def scatter(span: Span, options: DataOptions, encoder: PieceEncoder, num_buckets: int,
            sizes: Sizes, corpus: CorpusCounts,
            counts: InstanceCounts) -> Iterator[Pack]:
    """Yields the instances of all copies of a span's documents; adds the text to
    `corpus`, and all but masks to `counts`."""
    for documents in slices(
            options.input_files, span, encoder, corpus, sizes.slice_codes):
        held, num_bytes = [], 0
        for plans in plan_chunks(documents, range(options.dupe_factor),
                                 options.instances, options.random_seed, counts):
            held.append(plans)
            num_bytes += documents.codes.itemsize * int(
                plans["length_a"].sum() + plans["length_b"].sum())
            if num_bytes >= sizes.pack_bytes:
                yield _pack(np.concatenate(held), documents.codes, num_buckets)
                held, num_bytes = [], 0
        if num_bytes:
            yield _pack(np.concatenate(held), documents.codes, num_buckets)


def _pack(plans: np.ndarray, codes: np.ndarray, num_buckets: int) -> Pack:
    plans = plans[np.argsort(plans["order"])]
    starts = np.stack([plans["start_a"], plans["start_b"]], axis=1)
    ends = starts + np.stack([plans["length_a"], plans["length_b"]], axis=1)
    rows = np.empty(len(plans), ROW)
    for name in ROW.names:
        rows[name] = plans[name]
    # Python's integer of the first number of each bucket; the last would be too large.
    limits = np.array([k * 2**64 // num_buckets for k in range(num_buckets)], np.uint64)
    first = np.append(np.searchsorted(plans["order"], limits), len(plans))
    return Pack(rows, np.concatenate([
        _codes_at(codes, starts[at:at + _ROWS_PER_BATCH], ends[at:at + _ROWS_PER_BATCH])
        for at in range(0, len(plans), _ROWS_PER_BATCH)]),
        first, sums_before((ends - starts).sum(axis=1))[first])


def _codes_at(codes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns codes[start:end] for each start and end, concatenated."""
    view = memoryview(codes)
    return np.frombuffer(b"".join([view[start:end] for start, end in zip(
        starts.ravel().tolist(), ends.ravel().tolist())]), codes.dtype)


def records(rows: np.ndarray, codes: np.ndarray, options: InstanceOptions,
            tokenizer: FullTokenizer, counts: InstanceCounts) -> Iterator[bytes]:
    """Yields the masked records of a bucket in the bytes of a TFRecord file, and adds the
    masks to `counts`; `rows` and `codes` are those of all packs, concatenated."""
    order = np.argsort(rows["order"], kind="stable")
    start_a = sums_before(rows["length_a"] + rows["length_b"])[:-1][order]
    rows = rows[order]
    start_b = start_a + rows["length_a"]
    end_b = start_b + rows["length_b"]
    ids = SpecialIds(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    num_slots = options.masking.num_prediction_slots
    spec = pretraining_spec(options.max_seq_length, num_slots)
    for at in range(0, len(rows), _ROWS_PER_BATCH):
        some = slice(at, at + _ROWS_PER_BATCH)
        sequences = assemble_batch(
            rows[some], _codes_at(codes, start_a[some], start_b[some]),
            _codes_at(codes, start_b[some], end_b[some]), options.max_seq_length,
            ids.cls, ids.sep, tokenizer.pad_id)
        masked = mask_batch(
            sequences.input_ids, sequences.starts_word, sequences.lengths,
            rows["mask"][some], options.masking, ids, tokenizer.vocab_size)
        counts.add_masks(masked.num_masked, masked.shown, masked.ngram_words)
        yield encode.frames(spec, {
            **sequences._asdict(), **masked._asdict(),
            "masked_lm_weights": (
                np.arange(num_slots) < masked.num_masked[:, None]).astype(np.float32),
            "next_sentence_labels": rows["label"][some, None],
        })
