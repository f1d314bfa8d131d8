"""Runs a script up to its first step, and compiles its steps for a TPU instead.

    python -m tests.tpu.compile_run run_pretraining --input_file=... --output_dir=...

Every kind of training step of the run (each length of a batch, each depth) and every
kind of evaluation step is compiled by libtpu. Prints a line of JSON for each: what it
is, its shape, and the memory of the program.
"""

import dataclasses
import importlib
import json
import os
import sys

from absl import app

from benchmarks import tpu_compiler


def compile_steps(run) -> None:
    """Takes the place of `Run._go`: compiles, and ends the process."""
    from albert_tf.training import evaluation

    trainer = run.trainer

    def compiled(what, function, dataset):
        spec = evaluation.replica_spec(dataset.element_spec)
        shapes = {name: spec[name].shape.as_list()
                  for name in ("input_ids", "masked_lm_positions") if name in spec}
        program = tpu_compiler.compiled(
            lambda features: run.strategy.run(function, args=(features,)), [spec],
            tpu_compiler.CHIPS["v3"])
        print(json.dumps({**what, **shapes, "memory": program.memory}), flush=True)

    kinds = {trainer.kind_of_step(step) for step in range(run.options.num_train_steps)}
    for shape, passes in sorted(kinds, key=str):
        # On TPUs padding is never skipped.
        computation = dataclasses.replace(
            trainer.computation, passes=passes, skip_padding=False)
        parts = run.options.step.gradient_accumulation_steps
        compiled({"step": "train", "passes": passes, "parts": parts},
                 lambda features: trainer._replica_step(computation, parts, features),
                 trainer.datasets[shape])
    if run.evaluates:
        evaluator = run.evaluator
        evaluator.computation = dataclasses.replace(
            evaluator.computation, skip_padding=False)
        specs = {}
        for dataset, _ in evaluator._datasets:
            specs[evaluation.shape_key(dataset)] = dataset
        for dataset in specs.values():
            compiled({"step": "evaluate"}, evaluator._replica_step, dataset)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Runs the script whose name is the first argument."""
    tpu_compiler.prepare()
    from albert_tf.training import loop

    loop.Run._go = lambda run, due: compile_steps(run)
    script = importlib.import_module(sys.argv[1])
    sys.argv = [f"{sys.argv[1]}.py", *sys.argv[2:]]
    app.run(script.main)


if __name__ == "__main__":
    main()
