"""From documents to pretraining instances, as the release makes them.

Used by --reproduce_release, and the one to read first; by default `plans` makes the same
instances, in distribution, for thousands of walks at a time.

Random numbers are drawn from the source that is given, in the order in which the
release's create_instances_from_document draws them.

    document     a list of segments (sentences), in order
    segment      a list of pieces
    instance     [CLS] a [SEP] b [SEP], masked, with the label of its order
                 (without a sentence objective: [CLS] a [SEP])
"""

from typing import Iterator, Mapping, NamedTuple, Optional, Sequence

from albert_tf.masking.options import CLS, SEP
from albert_tf.masking.reference import RandomSource, mask_sequence
from albert_tf.pretraining_data.options import (
    FOLLOWING, InstanceOptions, LABEL_1, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.tokenization import sequences
from albert_tf.tokenization.sequences import WordStarts

Segment = list[str]
Document = list[Segment]


class Pieces(NamedTuple):
    """What instances need to know of a vocabulary."""

    vocabulary: Sequence[str]  # all pieces, in its order
    starts_word: Mapping[str, bool]

    @classmethod
    def of(cls, vocabulary: Sequence[str], rule: str) -> "Pieces":
        """All pieces, and a rule of tokenization.sequences."""
        return cls(list(vocabulary), WordStarts(rule))


class Instance(NamedTuple):
    """One example of pretraining, before padding; lists are [length] or [masked]."""

    tokens: list[str]  # pieces with [CLS] and [SEP], after masking
    segment_ids: list[int]  # 0 up to the first [SEP], then 1; all 0 for one segment
    token_boundary: list[int]  # 1 where a word starts
    masked_lm_positions: list[int]  # ascending
    masked_lm_labels: list[str]  # the pieces to predict
    label: int  # 1 if the second segment is swapped or from another document, else 0
    origin: str  # one of options.ORIGINS
    num_cut: int  # pieces cut off to fit max_seq_length
    ngrams: list[int]  # words of each masked n-gram


class DocumentInstances(NamedTuple):
    """One walk over a document (without a sentence objective: over several)."""

    instances: list[Instance]  # in the order of the text
    skipped: list[int]  # pieces of each chunk of one sentence that was left out


class _Pair(NamedTuple):
    """Two segments; `num_unused` segments of the chunk go back to the document."""

    first: Segment
    second: Segment
    origin: str
    num_unused: int = 0


def create_walks(
        documents: Sequence[Document], pieces: Pieces, options: InstanceOptions,
        random: RandomSource) -> Iterator[DocumentInstances]:
    """All instances of one copy of the documents: a walk over each of them in turn;
    without a sentence objective, one walk over all. Arguments as of create_instances.
    """
    if options.sentence_objective == "none":
        yield create_full_sentences(documents, pieces, options, random)
        return
    for index in range(len(documents)):
        yield create_instances(documents, index, pieces, options, random)


def create_instances(
        documents: Sequence[Document], document_index: int, pieces: Pieces,
        options: InstanceOptions, random: RandomSource) -> DocumentInstances:
    """Walks once over a document (the release's create_instances_from_document).

    Segments gather in a chunk until it has the target length or the document ends; each
    chunk gives one instance.

        pieces = Pieces.of(tokenizer.vocab, "release")
        walk = create_instances(
            documents, 0, pieces, InstanceOptions(), RandomSource.from_seed(1))
        walk.instances[0].tokens

    No document and no segment is empty. Documents other than `document_index` are only
    read for second segments of the origin RANDOM_DOCUMENT. `options` have a sentence
    objective; the generators of `random` continue from their state.
    """
    if options.sentence_objective == "none":
        raise ValueError(
            "Full sentences run over several documents: call create_full_sentences.")
    document = documents[document_index]
    target_length = _target_length(options, random)
    instances, skipped = [], []
    chunk: list[Segment] = []
    length = position = 0
    while position < len(document):
        # 1. Sentences gather in a chunk until it is long enough.
        chunk.append(document[position])
        length += len(document[position])
        position += 1
        if position < len(document) and length < target_length:
            continue
        # 2. The chunk is cut in two at a sentence's end: in order, or swapped.
        pair = _pair_of_chunk(
            chunk, documents, document_index, target_length, pieces, options, random)
        if pair is None:
            skipped.append(length)
        else:
            # 3. A random second segment leaves sentences unused: they come again.
            position -= pair.num_unused
            instances.append(_instance_of_pair(pair, pieces, options, random))
        chunk, length = [], 0
    return DocumentInstances(instances, skipped)


def create_full_sentences(
        documents: Sequence[Document], pieces: Pieces, options: InstanceOptions,
        random: RandomSource) -> DocumentInstances:
    """Walks once over documents, one after another, without a sentence objective.

    Whole sentences fill each sequence up to its target length; where one document
    ends and the next begins within a sequence, a [SEP] stands between (RoBERTa,
    Liu et al. 2019, section 4.2, FULL-SENTENCES). A sentence longer than the
    target is an instance of its own, and the only one to be cut.
    """
    # [SEP] goes before a document's first sentence, but not at a sequence's start.
    sentences = [(index == 0, sentence) for document in documents
                 for index, sentence in enumerate(document)]
    instances, position = [], 0
    while position < len(sentences):
        # Whole sentences for as long as they fit.
        target_length = _target_length(options, random)
        text = list(sentences[position][1])
        position += 1
        while position < len(sentences):
            begins, sentence = sentences[position]
            more = [SEP, *sentence] if begins else sentence
            if len(text) + len(more) > target_length:
                break
            text += more
            position += 1
        kept, _ = sequences.truncate_at_random_ends(
            text, [], target_length, random.python)
        instances.append(_masked_instance(
            sequences.assemble(kept, None, CLS, SEP), ONE_SEGMENT,
            len(text) - len(kept), pieces, options, random))
    return DocumentInstances(instances, [])


def _target_length(options: InstanceOptions, random: RandomSource) -> int:
    """Pieces to aim at: mostly as many as fit."""
    target_length = options.max_pieces
    if random.python.random() < options.short_seq_prob:
        # Texts of fine-tuning are often shorter than a full sequence.
        target_length = random.python.randint(2, target_length)
    return target_length


def _pair_of_chunk(
        chunk: list[Segment], documents: Sequence[Document], document_index: int,
        target_length: int, pieces: Pieces, options: InstanceOptions,
        random: RandomSource) -> Optional[_Pair]:
    """Makes two segments of a chunk; None if it is to be left out."""
    draw = random.python
    if len(chunk) == 1 and options.single_segment == "random":
        second = _random_segment(
            documents, document_index, target_length - len(chunk[0]), random)
        return _Pair(chunk[0], second, RANDOM_DOCUMENT)
    if len(chunk) == 1:
        if options.single_segment == "skip" or len(chunk[0]) < 2:
            return None
        first, second = _split_segment(chunk[0], pieces, random)
        num_unused = 0  # both halves are one segment, which is used
    else:
        num_first = draw.randint(1, len(chunk) - 1)
        first = [piece for segment in chunk[:num_first] for piece in segment]
        second = [piece for segment in chunk[num_first:] for piece in segment]
        num_unused = len(chunk) - num_first
    if draw.random() >= 0.5:
        return _Pair(first, second, FOLLOWING)
    # Sentence order: both segments are of one text and topic, so that only coherence
    # shows that a pair was swapped (section 3.1 of the paper).
    if not options.random_next_sentence:
        return _Pair(second, first, SWAPPED)
    second = _random_segment(
        documents, document_index, target_length - len(first), random)
    return _Pair(first, second, RANDOM_DOCUMENT, num_unused)


def _random_segment(
        documents: Sequence[Document], document_index: int, target_length: int,
        random: RandomSource) -> Segment:
    """Text from a random place of a random other document, of at least one segment.

    Ten draws look for another document; then the last one drawn is used, so that a
    single document gives its own text.
    """
    for _ in range(10):
        other = random.python.randint(0, len(documents) - 1)
        if other != document_index:
            break
    document = documents[other]
    pieces = []
    for segment in document[random.python.randint(0, len(document) - 1):]:
        pieces += segment
        if len(pieces) >= target_length:
            break
    return pieces


def _split_segment(segment: Segment, pieces: Pieces,
                   random: RandomSource) -> tuple[Segment, Segment]:
    # Before the start of a word if there is one: half a word would give the order away.
    starts = [index for index in range(1, len(segment))
              if pieces.starts_word[segment[index]]]
    cut = random.python.choice(starts or range(1, len(segment)))
    return segment[:cut], segment[cut:]


def _instance_of_pair(pair: _Pair, pieces: Pieces, options: InstanceOptions,
                      random: RandomSource) -> Instance:
    """Cuts a pair to size, assembles and masks it."""
    first, second = sequences.truncate_at_random_ends(
        pair.first, pair.second, options.max_pieces, random.python)
    num_given = len(pair.first) + len(pair.second)
    return _masked_instance(
        sequences.assemble(first, second, CLS, SEP), pair.origin,
        num_given - len(first) - len(second), pieces, options, random)


def _masked_instance(assembled: sequences.Assembled, origin: str, num_cut: int,
                     pieces: Pieces, options: InstanceOptions,
                     random: RandomSource) -> Instance:
    masked = mask_sequence(
        assembled.tokens, pieces.starts_word, pieces.vocabulary, options.masking,
        random)
    return Instance(
        tokens=masked.pieces,
        segment_ids=assembled.segment_ids,
        token_boundary=masked.token_boundary,
        masked_lm_positions=masked.positions,
        masked_lm_labels=masked.labels,
        label=int(origin in LABEL_1),
        origin=origin,
        num_cut=num_cut,
        ngrams=masked.ngrams)
