"""Cuts documents into pretraining instances, as the original does.

`--reproduce_release` uses this module, and it is the one to read first. By default
`plans` makes instances of the same distribution, for thousands of documents at once.

Random numbers come from the caller's generators, in the same order as in the original's
create_instances_from_document.

    document     a list of segments (sentences), in order
    segment      a list of tokens
    instance     [CLS] a [SEP] b [SEP], masked, with the label of its order
                 (without a sentence objective: [CLS] a [SEP])
"""

from typing import Mapping, NamedTuple, Optional, Sequence

from albert_tf.masking.options import CLS, SEP
from albert_tf.masking.reference import RandomSource, mask_sequence
from albert_tf.pretraining_data.options import (
    FOLLOWING, InstanceOptions, LABEL_1, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.tokenization import sequences

Segment = list[str]
Document = list[Segment]


class Pieces(NamedTuple):
    """The properties of a vocabulary that the creation of instances needs."""

    vocabulary: Sequence[str]  # all tokens, in the order of their ids
    starts_word: Mapping[str, bool]  # token → whether it starts a word (WordStarts)


class Instance(NamedTuple):
    """One pretraining example, before padding. Lists have an entry for each token, or
    for each masked token."""

    tokens: list[str]  # with [CLS] and [SEP], after masking
    segment_ids: list[int]  # 0 up to the first [SEP], then 1; all 0 for one segment
    token_boundary: list[int]  # 1 where a word starts
    masked_lm_positions: list[int]  # ascending
    masked_lm_labels: list[str]  # the tokens to predict
    label: int  # 1 if the second segment is swapped or from another document, else 0
    origin: str  # one of options.ORIGINS
    num_cut: int  # tokens cut off to fit max_seq_length
    ngrams: list[int]  # number of words of each masked n-gram


# What one walk over a document gives (without a sentence objective: over all documents):
# instances in the order of the text, and the number of tokens of each chunk of one
# sentence that was left out.
Walk = tuple[list[Instance], list[int]]


class _Pair(NamedTuple):
    """Two segments. The last `num_unused` sentences of the chunk are not in them, and
    are visited again."""

    first: Segment
    second: Segment
    origin: str
    num_unused: int = 0


def create_instances(
        documents: Sequence[Document], document_index: int, pieces: Pieces,
        options: InstanceOptions, random: RandomSource) -> Walk:
    """Walks once over a document (the original's create_instances_from_document).

    Segments are collected in a chunk until it reaches the target length or the document
    ends; each chunk gives one instance, unless single_segment is "skip" and it has one.

        pieces = Pieces(list(tokenizer.vocab), WordStarts("release"))
        instances, _ = create_instances(
            documents, 0, pieces, InstanceOptions(), RandomSource.from_seed(1))
        instances[0].tokens

    No document and no segment may be empty. Documents other than `document_index` are
    read only for second segments of the origin RANDOM_DOCUMENT. The generators of
    `random` advance with each call.
    """
    document = documents[document_index]
    target_length = draw_target_length(options, random)
    instances, skipped = [], []
    chunk: list[Segment] = []
    length = position = 0
    while position < len(document):
        # 1. Collect sentences in a chunk until it is long enough.
        chunk.append(document[position])
        length += len(document[position])
        position += 1
        if position < len(document) and length < target_length:
            continue
        # 2. Cut it in two at the end of a sentence: the segments stay in order, or are
        #    swapped.
        pair = _pair_of_chunk(
            chunk, documents, document_index, target_length, options, random)
        if pair is None:
            skipped.append(length)
        else:
            # 3. If the second segment came from elsewhere, go back to the sentences that
            #    it replaced.
            position -= pair.num_unused
            # 4. Truncate and mask the pair. The longer segment loses tokens at its front
            #    or back at random, so that neither beginnings nor ends are rarer.
            first, second = sequences.truncate_at_random_ends(
                pair.first, pair.second, options.max_pieces, random.python)
            num_cut = sum(map(len, pair[:2])) - len(first) - len(second)
            instances.append(masked_instance(
                sequences.assemble(first, second, CLS, SEP), pair.origin, num_cut,
                pieces, options, random))
        chunk, length = [], 0
    return instances, skipped


def draw_target_length(options: InstanceOptions, random: RandomSource) -> int:
    """Returns the number of tokens to aim at: usually as many as fit."""
    target_length = options.max_pieces
    if random.python.random() < options.short_seq_prob:
        # Texts in fine-tuning are often shorter than a full sequence, so train on both.
        target_length = random.python.randint(2, target_length)
    return target_length


def _pair_of_chunk(
        chunk: list[Segment], documents: Sequence[Document], document_index: int,
        target_length: int, options: InstanceOptions,
        random: RandomSource) -> Optional[_Pair]:
    """Cuts a chunk into two segments; returns None if the chunk is to be left out."""
    generator = random.python
    # 1. A single sentence has no second half: take a random one, or skip it.
    if len(chunk) == 1:
        if options.single_segment == "skip":
            return None
        second = _random_segment(
            documents, document_index, target_length - len(chunk[0]), random)
        return _Pair(chunk[0], second, RANDOM_DOCUMENT)
    # 2. Otherwise cut after a random sentence.
    num_first = generator.randint(1, len(chunk) - 1)
    first = [token for segment in chunk[:num_first] for token in segment]
    second = [token for segment in chunk[num_first:] for token in segment]
    # 3. Half of the pairs stay as they are, with label 0.
    if generator.random() >= 0.5:
        return _Pair(first, second, FOLLOWING)
    # 4. Sentence order: swap the others. Both segments have the same topic, so only
    #    their coherence tells that they were swapped (section 3.1 of the paper).
    if not options.random_next_sentence:
        return _Pair(second, first, SWAPPED)
    # 5. BERT's objective: put text of a different document in the second's place. It
    #    differs in topic, which masked tokens teach already: easy, and of little help.
    second = _random_segment(
        documents, document_index, target_length - len(first), random)
    return _Pair(first, second, RANDOM_DOCUMENT, len(chunk) - num_first)


def _random_segment(
        documents: Sequence[Document], document_index: int, target_length: int,
        random: RandomSource) -> Segment:
    """Returns text from a random place in a random different document: at least one
    segment. After ten draws of the same document, as if it is the only one, that is used.
    """
    for _ in range(10):
        index = random.python.randint(0, len(documents) - 1)
        if index != document_index:
            break
    # Start at a random segment, and continue until the text is long enough.
    document = documents[index]
    tokens = []
    for segment in document[random.python.randint(0, len(document) - 1):]:
        tokens += segment
        if len(tokens) >= target_length:
            break
    return tokens


def masked_instance(assembled: tuple[list, list[int]], origin: str, num_cut: int,
                    pieces: Pieces, options: InstanceOptions,
                    random: RandomSource) -> Instance:
    """Masks a sequence and makes its instance."""
    tokens, segment_ids = assembled
    masking = mask_sequence(
        tokens, pieces.starts_word, pieces.vocabulary, options.masking, random)
    return Instance(
        masking.pieces, segment_ids, masking.token_boundary, masking.positions,
        masking.labels, int(origin in LABEL_1), origin, num_cut, masking.ngrams)
