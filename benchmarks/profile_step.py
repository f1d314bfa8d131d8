r"""Profiles a pretraining step by groups of operations.

    python -m benchmarks.profile_step --shapes=8x128,4x512 --dtypes=float32,bfloat16

Prints a table for each shape and type: core-milliseconds per step and the share of the
time. TensorFlow's profiler traces --rounds steps of "ours" of benchmarks/training.py, on a
single thread so that operations do not overlap. Shares are of the traced time, excluding
nested events; milliseconds are the share times the CPU seconds of the process. Each shape
and type runs in its own process. Groups are recognised by the names of operations; XLA
loops have the name of the function that was compiled (fast.island).
"""

import collections
import glob
import re
import subprocess
import sys
import tempfile
import time

from absl import flags

from albert_tf.cli import script
from benchmarks import contestants, training

FLAGS = flags.FLAGS

flags.DEFINE_bool("details", False, "Also list the 40 slowest kinds of operations.")

# The first pattern that matches an operation's name determines its group.
GROUPS = (
    ("matrix products of the attention", r"BatchMatMul"),
    ("matrix products with kernels", r"MatMul$"),
    ("dropout: drawing which units stay", r"stateless_random|fold_in|_philox"
     r"|GreaterEqual$|Bitcast$"),
    ("attention: softmax, dropout, their gradients", r"Softmax$|_dropped_probs"
     r"|_scores_gradient"),
    ("bias, dropout, residual, LayerNorm, their gradients", r"_normalize_"),
    ("bias and activation, their gradients", r"_add_activation|_activation_gradient"),
    ("loss over the pieces, accuracy", r"CrossEntropy|_cross_entropy|ArgMax"
     r"|cls_predictions"),
    ("gradients of biases", r"BiasAddGrad$"),
    ("query, key, value: bias, layout", r"/attention_1/|_attention_1/"),
    ("clipping, optimizer", r"Lamb|^Square|^Sum|^mul|^add_n|L2Loss"),
    ("kernels: types, sums of gradients", r"_sum|AddN$|Cast$|Concat"),
    ("embeddings", r"embeddings|SegmentSum"),
)
OTHER = "other"


def group_of(name: str) -> str:
    """Returns the group of an operation, whose name ends in its type."""
    return next((group for group, pattern in GROUPS if re.search(pattern, name)), OTHER)


def _events(folder):
    """Yields (line, start, end, name) of the executor threads' events, in picoseconds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    [path] = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace()
    with open(path, "rb") as stream:
        space.ParseFromString(stream.read())
    for plane in space.planes:
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            if not line.name.startswith("tf_Compute"):
                continue
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                module = [stat.str_value or stats.get(stat.ref_value, "")
                          for stat in event.stats
                          if stats[stat.metadata_id] == "hlo_module"]
                yield (line.id, event.offset_ps, event.offset_ps + event.duration_ps,
                       f"{module[0]}:{name}" if module else name)


def own_times(events) -> collections.Counter:
    """Returns name → time without nested events."""
    times, around = collections.Counter(), []
    for line, start, end, name in sorted(events, key=lambda e: (e[0], e[1], -e[2])):
        while around and (around[-1][0] != line or around[-1][1] <= start):
            around.pop()
        times[name] += end - start
        if around:
            times[around[-1][2]] -= end - start
        around.append((line, end, name))
    return times


def trace(config, shape: str, dtype: str):
    """Returns name → share of the time, and the core-seconds of a step."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    step = contestants.ours(config, *contestants.parsed_shape(shape), dtype)
    for _ in range(training.WARM_UP):
        step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        start = time.process_time()
        for _ in range(FLAGS.rounds):
            step()
        seconds = (time.process_time() - start) / FLAGS.rounds
        tf.profiler.experimental.stop()
        times = own_times(_events(folder))
    total = sum(times.values())
    return {name: value / total for name, value in times.items()}, seconds


def _print(heading: str, shares, seconds: float) -> None:
    print(f"\n| {heading} | core-ms | share |\n| --- | --- | --- |")
    for name, share in shares:
        print(f"| {name} | {1000 * share * seconds:,.0f} | {100 * share:.1f} % |")


def main(argv):
    if not (FLAGS.model or FLAGS.albert_config_file):
        FLAGS.model = "base"
    if not FLAGS.one_setting:
        for shape in FLAGS.shapes:
            for dtype in FLAGS.dtypes:
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.profile_step", *sys.argv[1:],
                     f"--one_setting={shape}:{dtype}"], check=True)
        return
    shape, dtype = FLAGS.one_setting.split(":")
    shares, seconds = trace(training._config(), shape, dtype)
    groups, kinds = collections.Counter(), collections.Counter()
    for name, share in shares.items():
        groups[group_of(name)] += share
        kinds[re.sub(r"_\d+", "", name)] += share
    heading = f"{shape} {dtype}, {seconds:.2f} core-seconds"
    _print(heading, groups.most_common(), seconds)
    if FLAGS.details:
        _print("kind", kinds.most_common(40), seconds)
    sys.stdout.flush()


if __name__ == "__main__":
    script.run(main)
