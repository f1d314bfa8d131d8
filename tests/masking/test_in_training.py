"""Masks drawn while training: the walk, its statistics, and what a run sees of them."""

import json
import pathlib
import re
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from albert_tf import records
from albert_tf.errors import InputError
from albert_tf.masking import reference
from albert_tf.masking.in_training import DynamicMasking
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records import checks
from albert_tf.training import input_pipeline
from tests.scripts import test_run_pretraining as runs
from tests import tiny_run
from tests.commands import run_commands

ROOT = pathlib.Path(__file__).parents[2]
IDS = SpecialIds(cls=2, sep=3, mask=4)
NAMES = {IDS.cls: "[CLS]", IDS.sep: "[SEP]", IDS.mask: "[MASK]"}
VOCAB_SIZE = 40
LENGTH = 40  # S
PIECES = [NAMES.get(i, str(i)) for i in range(VOCAB_SIZE)]
# Two pieces of three start a word.
STARTS = {piece: i % 3 != 0 for i, piece in enumerate(PIECES)}


def sequence(random, size, one_word=False):
    """Ids of [CLS] a [SEP] b [SEP] with `size` pieces."""
    ids = random.integers(5, VOCAB_SIZE, size)
    if one_word:
        ids = ids // 3 * 3  # One word, at the most.
    ids[0], ids[-1] = IDS.cls, IDS.sep
    if size > 4:
        ids[random.integers(2, size - 2)] = IDS.sep
    return ids


def features(sequences, length=LENGTH):
    """A batch, padded; [CLS] and [SEP] start words in records."""
    batch = np.zeros([3, len(sequences), length], np.int32)
    for row, ids in enumerate(sequences):
        batch[0, row, :len(ids)] = ids
        batch[1, row, :len(ids)] = 1
        batch[2, row, :len(ids)] = [i in (2, 3) or STARTS[PIECES[i]] for i in ids]
    ids, mask, boundary = map(tf.constant, batch)
    return dict(
        input_ids=ids, input_mask=mask, token_boundary=boundary, segment_ids=mask)


def random_draws(random, *shape):
    return random.integers(-2**31, 2**31, shape).astype(np.int32)


def share(draw):
    """A draw of all int32 as a number in 0..1."""
    return (float(draw) + 2**31 + 0.5) / 2**32


def walk(ids, places, sizes, options):
    """Positions by masking.mask_sequence, made to draw what it is told."""
    words = []

    def shuffle(order):
        words.extend(order)
        order.sort(key=lambda word: places[word])
        words[:] = order

    sizes_in_order = (share(sizes[word]) for word in words)
    source = reference.RandomSource(
        types.SimpleNamespace(shuffle=shuffle, random=lambda: 0.0),
        types.SimpleNamespace(random_sample=lambda: next(sizes_in_order)))
    masked = reference.mask_sequence(
        [PIECES[i] for i in ids], STARTS, PIECES, options, source)
    return masked.positions


OPTIONS = {
    "default": MaskingOptions(6),
    "few": MaskingOptions(2, masked_lm_prob=0.3),
    "long": MaskingOptions(30, masked_lm_prob=0.5, ngram=7, favor_shorter_ngram=False),
    "pieces": MaskingOptions(8, do_whole_word_mask=False),
    "single": MaskingOptions(8, ngram=1),
    "all": MaskingOptions(60, masked_lm_prob=1.0),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_walk_is_that_of_the_static_masks(name):
    options, random = OPTIONS[name], np.random.default_rng(1)
    sequences = [sequence(random, size, one_word=size % 5 == 0)
                 for size in [*range(2, LENGTH + 1)] * 3]
    mask = DynamicMasking(options, IDS, LENGTH, VOCAB_SIZE)
    batch = features(sequences)
    draws = random_draws(random, len(sequences), 4, LENGTH)
    found = mask(batch, tf.constant(draws.reshape(len(sequences), -1)))
    slots = options.max_predictions_per_seq
    assert "token_boundary" not in found
    assert found["masked_lm_positions"].shape == (len(sequences), slots)
    assert {value.dtype for key, value in found.items() if key != "masked_lm_weights"
            } == {tf.int32} and found["masked_lm_weights"].dtype == tf.float32
    numbers = set()
    for row, ids in enumerate(sequences):
        expected = walk(ids, draws[row, 0], draws[row, 1], options)
        count = len(expected)
        numbers.add(count)
        padded = expected + [0] * (slots - count)
        np.testing.assert_array_equal(found["masked_lm_positions"][row], padded)
        np.testing.assert_array_equal(
            found["masked_lm_weights"][row], np.arange(slots) < count)
        np.testing.assert_array_equal(
            found["masked_lm_ids"][row], [*ids[expected]] + [0] * (slots - count))
        # What becomes of each piece.
        new = batch["input_ids"][row].numpy()
        for at in expected:
            fate, piece = share(draws[row, 2, at]), share(draws[row, 3, at])
            new[at] = (IDS.mask if fate < 0.8 else new[at] if fate < 0.9
                       else int(piece * VOCAB_SIZE))
        np.testing.assert_array_equal(found["input_ids"][row], new)
    assert len(numbers) > (1 if name == "few" else 3)


def test_any_piece_of_the_vocabulary_may_replace_another():
    mask = DynamicMasking(MaskingOptions(1), IDS, 4, 2**31 - 1)
    ids = tf.zeros([1, 4], tf.int32)
    for draw, piece in ((-2**31, 0), (2**31 - 1, 2**31 - 2), (0, 2**30 - 1)):
        fates = tf.fill([1, 4], 2**31 - 1)
        found = mask._replacements(ids, fates, tf.fill([1, 4], draw))
        assert found.numpy().tolist() == [[piece] * 4]


def test_permutation_is_refused():
    with pytest.raises(ValueError, match="permuted"):
        DynamicMasking(MaskingOptions(do_permutation=True), IDS, 8, 9)


# ---- statistics ------------------------------------------------------------


def lengths_of_runs(flags):
    """Lengths of the runs of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags, [0]])))
    return edges[1::2] - edges[::2]


class Statistics:
    """Histograms of what was masked in a sample of sequences."""

    def __init__(self):
        self.values = {name: [] for name in (
            "masked", "runs of words", "runs of pieces", "position", "word length",
            "fate", "random piece")}

    def add(self, ids, new, positions):
        values = self.values
        hit = np.isin(np.arange(len(ids)), positions)
        words, _ = reference.group_words([PIECES[i] for i in ids], STARTS, True)
        taken = np.array([hit[word[0]] for word in words])
        assert all(hit[word].all() == hit[word].any() for word in map(np.array, words))
        values["masked"].append(len(positions))
        values["runs of words"].extend(lengths_of_runs(taken))
        values["runs of pieces"].extend(lengths_of_runs(hit))
        values["position"].extend(positions)
        values["word length"].extend(len(w) for w, t in zip(words, taken) if t)
        for at in positions:
            fate = 0 if new[at] == IDS.mask else 1 if new[at] == ids[at] else 2
            values["fate"].append(fate)
            if fate == 2:
                values["random piece"].append(new[at])

    def p_values(self, other):
        """Two-sample chi-square tests."""
        found = {}
        for name, mine in self.values.items():
            table = np.stack([np.bincount(v, minlength=200)
                              for v in (mine, other.values[name])])
            # Rare values together.
            table = table[:, np.argsort(-table.sum(0))]
            rare = table.sum(0) < 20
            table = np.c_[table[:, ~rare], table[:, rare].sum(1)]
            found[name] = stats.chi2_contingency(table[:, table.sum(0) > 0])[1]
        return found


def static_sample(sequences, options, seed):
    sample, source = Statistics(), reference.RandomSource.from_seed(seed)
    ids_of = {piece: i for i, piece in enumerate(PIECES)}
    for ids in sequences:
        found = reference.mask_sequence(
            [PIECES[i] for i in ids], STARTS, PIECES, options, source)
        sample.add(ids, [ids_of[piece] for piece in found.pieces], found.positions)
    return sample


def dynamic_sample(sequences, options, seed):
    sample, mask = Statistics(), DynamicMasking(options, IDS, LENGTH, VOCAB_SIZE)
    found = mask(features(sequences), input_pipeline.draw(
        (seed,), tf.constant(0, tf.int64), len(sequences), mask.num_draws))
    counts = tf.reduce_sum(found["masked_lm_weights"], axis=1).numpy().astype(int)
    for ids, new, positions, count in zip(
            sequences, found["input_ids"].numpy(),
            found["masked_lm_positions"].numpy(), counts):
        sample.add(ids, new, positions[:count].tolist())
    return sample


@pytest.mark.parametrize("favor_shorter", [True, False])
def test_statistics_are_those_of_static_masks(favor_shorter):
    random = np.random.default_rng(2)
    sequences = [sequence(random, size) for size in random.integers(5, 41, 3000)]
    options = MaskingOptions(6, favor_shorter_ngram=favor_shorter)
    static = static_sample(sequences, options, 3)
    p_values = dynamic_sample(sequences, options, 4).p_values(static)
    assert min(p_values.values()) > 1e-3, p_values
    # The test would see another distribution of sizes.
    other = MaskingOptions(6, favor_shorter_ngram=not favor_shorter)
    p_values = dynamic_sample(sequences, other, 4).p_values(static)
    assert p_values["runs of words"] < 1e-9


# ---- compiled --------------------------------------------------------------


def test_compiles_for_accelerators_with_the_same_result():
    mask = DynamicMasking(OPTIONS["default"], IDS, LENGTH, VOCAB_SIZE)

    def step(batch, first):
        return mask(batch, input_pipeline.draw((5,), first, 7, mask.num_draws))

    random = np.random.default_rng(6)
    batch = features([sequence(random, size) for size in (2, 5, 11, 22, 33, 39, 40)])
    first = tf.constant(10**12, tf.int64)
    expected = step(batch, first)
    for jit in (False, True):
        found = tf.function(step, jit_compile=jit)(batch, first)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


# ---- the input pipeline ----------------------------------------------------

SPEC = records.pretraining_spec(LENGTH, 6, VOCAB_SIZE, 2)
UNMASKED = checks.unmasked_spec(SPEC)
COUNT = 21  # records


def unmasked_record(ids, slots=6, length=LENGTH):
    row = {name: value.numpy()[0] for name, value in features([ids], length).items()}
    empty = np.zeros(slots, np.int64)
    return dict(
        row, segment_ids=np.zeros(length, np.int64), masked_lm_positions=empty,
        masked_lm_ids=empty, masked_lm_weights=empty.astype(np.float32),
        next_sentence_labels=[int(ids[1]) % 2])


def write(path, rows, spec=SPEC):
    with records.RecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(spec.serialize(row))
    return str(path)


@pytest.fixture(scope="module", name="infos")
def _infos(tmp_path_factory):
    """Three files of unmasked records, each record with another second piece."""
    folder, random = tmp_path_factory.mktemp("unmasked"), np.random.default_rng(7)
    paths = []
    for part in range(3):
        rows = []
        for number in range(part * 7, part * 7 + 7):
            ids = sequence(random, 38)
            ids[1:4] = 5 + number, 6 + number, 7 + number
            rows.append(unmasked_record(ids))
        paths.append(write(folder / f"{part}.tfrecord", rows))
    return records.check_files(paths, UNMASKED)


MASK = DynamicMasking(MaskingOptions(12), IDS, LENGTH, VOCAB_SIZE)


def examples(batches):
    """Features of each example in turn, as tuples that compare."""
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    return [tuple(b[name][i].numpy().tobytes() for name in names)
            for b in batches for i in range(len(b["input_ids"]))]


def unmasked(batches):
    """The pieces of each example before it was masked."""
    found = []
    for batch in batches:
        for ids, positions, labels, weights in zip(*(batch[n].numpy() for n in (
                "input_ids", "masked_lm_positions", "masked_lm_ids",
                "masked_lm_weights"))):
            ids = ids.copy()
            ids[positions[weights > 0]] = labels[weights > 0]
            found.append(ids.tobytes())
    return found


def train(infos, batch_size, count, seed=1, **options):
    return list(input_pipeline.training_dataset(
        infos, UNMASKED, batch_size, seed, random_map=MASK,
        **{"shuffle_buffer": 5, **options}).take(count))


def test_masks_differ_in_each_epoch_and_cover_all_words(infos):
    dataset = input_pipeline.training_dataset(
        infos, UNMASKED, COUNT, 1, shuffle_buffer=0, random_map=MASK)
    assert {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()
            } == {**dict.fromkeys(("input_ids", "input_mask", "segment_ids"),
                                  [COUNT, LENGTH]),
                  **dict.fromkeys(("masked_lm_positions", "masked_lm_ids",
                                   "masked_lm_weights"), [COUNT, 12]),
                  "sentence_order_labels": [COUNT, 1]}
    epochs = list(dataset.take(60))
    plain = unmasked(epochs[:1])
    assert len(set(plain)) == COUNT
    masks = [set() for _ in range(COUNT)]
    hit = np.zeros([COUNT, LENGTH], bool)
    for epoch in epochs:
        assert unmasked([epoch]) == plain
        for row, example in enumerate(examples([epoch])):
            masks[row].add(example)
        hit[np.arange(COUNT)[:, None], epoch["masked_lm_positions"]] |= (
            epoch["masked_lm_weights"].numpy() > 0)
    assert all(len(found) > 55 for found in masks)
    ids = np.array([np.frombuffer(p, np.int32) for p in plain])
    np.testing.assert_array_equal(hit, (ids != 0) & (ids != IDS.cls) & (ids != IDS.sep))


@pytest.mark.parametrize("batch_size, shards", [(4, 2), (50, 1)])
def test_a_resumed_stream_has_the_masks_of_an_unbroken_one(infos, batch_size, shards):
    options = dict(num_shards=shards, shard_index=shards - 1)
    unbroken = train(infos, batch_size, 12, **options)
    assert len(set(examples(unbroken))) > 0.98 * 12 * batch_size
    for start in (1, 9):
        resumed = train(infos, batch_size, 2, start_batch=start, **options)
        assert examples(resumed) == examples(unbroken[start:start + 2])


def test_masks_do_not_depend_on_the_batch_size_or_on_threads(infos):
    whole = examples(train(infos, 8, 8))
    assert examples(train(infos, 4, 16)) == whole
    tf.random.set_seed(99)
    dataset = input_pipeline.training_dataset(
        infos, UNMASKED, 8, 1, shuffle_buffer=5, random_map=MASK)
    for threads in (1, 3):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.threading.max_intra_op_parallelism = threads
        made = dataset.prefetch(threads).with_options(options)
        assert examples(made.take(8)) == whole


def test_seeds_and_shards_draw_independently():
    first = tf.constant(0, tf.int64)
    draws = {tuple(input_pipeline.draw(entropy, first, 1, 8).numpy()[0])
             for entropy in ((1, 0, 1), (1, 1, 1), (2, 0, 1), (0, 0, 2))}
    assert len({number for row in draws for number in row}) == 32


def test_draws_are_pinned():
    """A resumed run needs these; a change of them must be deliberate."""
    def draw(first, count, num_draws):
        return input_pipeline.draw(
            (7, 0, 1), tf.constant(first, tf.int64), count, num_draws).numpy().tolist()

    assert draw(3, 2, 5) == PINNED
    assert draw(4, 1, 5) == PINNED[1:]


PINNED = [[-614798303, 1344677474, 631414092, 1393979722, 2101918512],
          [-860212042, 1082056362, -1812166366, 1845985296, -443625932]]


def test_evaluation_masks_the_same_each_time_in_any_number_of_shards(infos):
    def evaluate(batch_size, shards=1, shard=0):
        data = input_pipeline.evaluation_dataset(
            infos, UNMASKED, batch_size, num_shards=shards, shard_index=shard,
            random_map=MASK)
        return [(example, weight) for batch in data.dataset
                for example, weight in zip(examples([batch]),
                                           batch["example_weights"].numpy())]

    whole = [example for example, weight in evaluate(4) if weight]
    assert len(whole) == COUNT
    for shard in range(2):
        assert [e for e, weight in evaluate(8, 2, shard) if weight] == whole[shard::2]
    # Rows that fill up a batch predict nothing.
    assert all(not any(example[3]) for example, weight in evaluate(4) if not weight)


# ---- records and summaries -------------------------------------------------


def test_special_ids_come_from_the_summary_and_flags_go_before(tmp_path):
    ids = sequence(np.random.default_rng(0), 9)
    path = write(tmp_path / "a", [unmasked_record(ids)])

    def found(summary, **given):
        return SpecialIds(**checks.special_ids(
            [path], UNMASKED, VOCAB_SIZE, summary,
            {**dict.fromkeys(("cls_id", "sep_id", "mask_id")), **given}))

    assert found({"cls": 2, "sep": 3, "mask": 4}) == IDS
    assert found({"cls": 9, "sep": 3, "mask": 4}, cls_id=2, mask_id=7) == (2, 3, 7)
    assert found(None, cls_id=2, sep_id=3, mask_id=4) == IDS
    for summary, given, pattern in (
            (None, dict(cls_id=2), r"needs --sep_id, --mask_id, because no summary"),
            (None, dict(cls_id=2, sep_id=3, mask_id=40), "--mask_id is 40, which is"),
            (None, dict(cls_id=2, sep_id=3, mask_id=2), "are 2, 3 and 2; they must"),
            ({"cls": 5, "sep": 3, "mask": 4}, {}, "begins with id 2, but --cls_id is"),
            ({"cls": 2, "sep": 5, "mask": 4}, {}, "ends with id 3, but --sep_id is 5")):
        with pytest.raises(InputError, match=pattern):
            found(summary, **given)


def test_a_record_without_a_mask_among_others_is_no_unmasked_file(tmp_path):
    random = np.random.default_rng(0)
    rows = [unmasked_record(sequence(random, 9)) for _ in range(3)]
    path = write(tmp_path / "a", rows)
    with pytest.raises(InputError, match="not masked, so there is nothing to predict"):
        checks.check_masks([path], SPEC, dynamic_masking=False)
    rows[2]["masked_lm_weights"][0] = 1
    checks.check_masks([write(tmp_path / "a", rows)], SPEC, dynamic_masking=False)


# ---- runs ------------------------------------------------------------------

FLAGS = dict(
    max_seq_length=tiny_run.LENGTH, max_predictions_per_seq=2, dynamic_masking="true",
    masked_lm_prob=0.3, train_batch_size=8, eval_batch_size=4, num_warmup_steps=2,
    save_checkpoints_steps=10, learning_rate=0.02, num_train_steps=60,
    cls_id=2, sep_id=3, mask_id=4, albert_config_file="{data}/config.json",
    input_file="{data}/unmasked.tfrecord", eval_input_file="{data}/dev.tfrecord")
STATIC = dict.fromkeys(
    ("dynamic_masking", "masked_lm_prob", "cls_id", "sep_id", "mask_id"))
NO_IDS = dict.fromkeys(("cls_id", "sep_id", "mask_id"))

# name → (flags, pattern of the sentence); all are found before TensorFlow is loaded.
WRONG = {
    "masked": (dict(input_file="{data}/masked.tfrecord"),
               "masked.tfrecord: the records are masked already; leave out --dyna"),
    "evaluation is masked": (dict(eval_input_file="{data}/masked.tfrecord"),
                             "masked.tfrecord: the records are masked already"),
    "unmasked": ({**STATIC, "max_predictions_per_seq": 3, "eval_input_file": None},
                 "unmasked.tfrecord: the records are not masked, so there is nothing "
                 "to predict; give --dynamic_masking, or"),
    "no ids": (NO_IDS, "--dynamic_masking needs --cls_id, --sep_id, --mask_id, because "
               "no summary beside .*dev.tfrecord tells"),
    "other ids": (dict(cls_id=1), "begins with id 2, but --cls_id is 1"),
    "no dynamic masking": (
        {**STATIC, "ngram": 2, "input_file": "{data}/masked.tfrecord"},
        "--ngram says how masks are made while training; give --dynamic_masking too"),
    "nothing to mask": (dict(masked_lm_prob=0), "--masked_lm_prob=0 masks nothing"),
    "probability": (dict(masked_lm_prob=1.5), "--masked_lm_prob=1.5: give a prob"),
    "ngram": (dict(ngram=0), "--ngram=0: give a number of 1 or more"),
    "length": (dict(max_seq_length=7), "have 8 values where max_seq_length says 7"),
    "objective": (
        dict(sentence_objective="order", input_file="{data}/next/train.tfrecord"),
        "train.tfrecord was made with the sentence objective next, as .*/next/summary-"
        "train.tfrecord.json says, but --sentence_objective=order is given"),
    "two objectives": (
        dict(input_file="{data}/next/train.tfrecord,{data}/none/train.tfrecord"),
        "none/train.tfrecord was made with the sentence objective none, as .* says, "
        "but .*next/train.tfrecord with next; train and evaluate on records of one"),
}
# A command that works.
NONE = dict(NO_IDS, input_file="{data}/none/train.tfrecord", eval_input_file=None,
            do_eval="true", num_train_steps=4, save_checkpoints_steps=2)
OTHER_OBJECTIVE = dict(output_dir="{data}/none")


def tiny_rows(count, seed, masked=0):
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        row = tiny_run.example(random, masked)
        size = row["input_mask"].sum()
        row["input_ids"][[0, size - 1]] = IDS.cls, IDS.sep
        row["token_boundary"] = np.maximum(
            random.integers(0, 2, tiny_run.LENGTH), row["input_ids"] < 4)
        rows.append(row)
    return rows


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "unmasked.tfrecord", tiny_rows(30, 1), tiny_run.SPEC)
    write(folder / "dev.tfrecord", tiny_rows(9, 2), tiny_run.SPEC)
    write(folder / "masked.tfrecord", tiny_rows(9, 3, masked=2), tiny_run.SPEC)
    (folder / "config.json").write_text(tiny_run.config(
        num_hidden_layers=1, hidden_dropout_prob=0.1).to_json())
    for name, instances in (("none", {"sentence_objective": "none"}),
                            ("next", {"random_next_sentence": True})):
        (folder / name).mkdir()
        write(folder / name / "train.tfrecord", tiny_rows(9, 4), tiny_run.SPEC)
        (folder / name / "summary-train.tfrecord.json").write_text(json.dumps({
            "settings": {"output_files": ["train.tfrecord"], "instances": instances},
            "vocabulary": {"size": tiny_run.VOCAB_SIZE, "sha256": "1", "file": "v",
                           "special_ids": IDS._asdict()}}))
    return folder


def arguments(data, **changes):
    flags = {**FLAGS, **changes}
    return [f"--{flag}={value}".replace("{data}", str(data))
            for flag, value in flags.items() if value is not None]


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    named = {**{name: changes for name, (changes, _) in WRONG.items()},
             "none": NONE, "other objective": OTHER_OBJECTIVE}
    commands = {
        name: arguments(data, **{"output_dir": f"{{data}}/{name}", **changes})
        for name, changes in named.items()}
    with run_commands("run_pretraining", commands, light=WRONG) as results:
        yield results


def rows(folder, split):
    with open(folder / "metrics.jsonl") as lines:
        return [row for row in map(json.loads, lines) if row["split"] == split]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gives_one_sentence(name, results):
    result = results[name]
    assert result["status"] == 1, result["stderr"]
    [line] = [line for line in result["stderr"].splitlines()
              if line.startswith("run_pretraining.py: ")]
    assert re.search(WRONG[name][1], line), line
    assert not result["loaded"], "TensorFlow"


@pytest.mark.slow
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(data):
    """SIGKILL at a random moment, twice."""
    moments = np.random.default_rng()
    for name in ("unbroken", "killed"):
        (data / name).mkdir()
        args = arguments(data, output_dir=data / name, num_train_steps=60)
        for _ in range(2 * (name == "killed")):
            process = runs.start(args)
            runs.stop(process, data / name, signal.SIGKILL, moments.uniform(0, 0.3))
            process.communicate()
        output = runs.finish(runs.start(args))
    assert "Going on at step" in output
    runs.assert_same_end(data / "killed", data / "unbroken")


def test_without_the_sentence_loss_its_layers_stay_as_they_are(results, data):
    results.ok("none")
    for split in ("train", "eval"):
        names = rows(data / "none", split)[-1].keys()
        assert "masked_lm_loss" in names
        assert not [name for name in names if "sentence_order" in name]
    early, late = (runs.stored(data / "none", f"model.ckpt-{n}") for n in (2, 4))
    frozen = {key for key in late if "pooler" in key or "seq_rel" in key}
    assert len(frozen) == 4 and not any("adam" in key for key in frozen)
    for key in late.keys() - {"save_counter/.ATTRIBUTES/VARIABLE_VALUE"}:
        same = np.array_equal(early[key], late[key])
        assert same == (key in frozen), key
    other = json.loads((data / "none" / "options.json").read_text())
    assert other["sentence_objective"] == "none"
    assert other["masked_lm_prob"] == 0.3 and other["special_ids"]["mask"] == 4
    kept = json.loads((data / "none" / "vocabulary.json").read_text())
    assert kept["special_ids"] == IDS._asdict()
    # Nor can a run take them up again half-way.
    assert results["other objective"]["status"] == 1
    assert re.search(
        "the run in .*/none started with --sentence_objective=none, now it is order; "
        "choose another", results["other objective"]["stderr"])
    log = results["none"]["log"]
    assert "Masks are drawn anew each time: 2 pieces of a sequence of 8" in log


def summary(folder, **instances):
    folder.mkdir(exist_ok=True)
    (folder / "summary-a.json").write_text(json.dumps({
        "settings": {"output_files": ["a"], "instances": instances}}))
    return checks.summaries_of([str(folder / "a")])


def test_sentence_objective_is_what_the_records_were_made_for(tmp_path):
    objective = checks.sentence_objective
    assert objective([]) == "order" and objective([], "none") == "none"
    old = summary(tmp_path / "1", random_next_sentence=False)
    assert objective(old) == "order"
    old = summary(tmp_path / "1", random_next_sentence=True)
    assert objective(old) == objective(old, "next") == "next"
    for told in ("order", "next", "none"):
        assert objective(summary(tmp_path / "2", sentence_objective=told)) == told
    # Where a summary says nothing of it, the flag decides.
    unknown = [old[0]._replace(content={"settings": {}})]
    assert objective(unknown, "none") == "none"
