r"""Pretrains transformers' ALBERT on text, as that library's own script does.

    python -m benchmarks.transformers_pretraining --albert_config_file=config.json \
        --spm_model_file=spm.model --input_file=train.txt \
        --eval_input_file=heldout.tfrecord --output_dir=transformers_run

Used by experiments/time_to_quality.py. It does what transformers'
examples/pytorch/language-modeling/run_mlm.py does with a new model. The tokenizer splits
each line into tokens, special ones included. Lines are concatenated and cut into sequences.
The collator masks 15 % of the tokens, newly drawn each time. The Trainer uses AdamW,
clipping at 1 and a learning rate with linear decay. There is no sentence loss.

Held-out records are ours and keep their stored masks. Evaluations are written to
metrics.jsonl in the format of run_pretraining.py, the model in transformers' layout to
--output_dir. If interrupted, the same command resumes from the last checkpoint.
"""

import glob
import os

import numpy as np
from absl import flags

from albert_tf import files, text_files
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from albert_tf.errors import InputError
from albert_tf.records.tfrecord import Example, read_records
from albert_tf.training.log import MetricsLog
from benchmarks.peers import NotInstalled, hf_config, imported

FLAGS = flags.FLAGS

for _name, _help in (
        ("albert_config_file", "Config of the model."),
        ("spm_model_file", "SentencePiece model."), ("input_file", "Text to train on."),
        ("eval_input_file", "Records to evaluate on."),
        ("output_dir", "Folder of the model.")):
    flags.DEFINE_string(_name, None, _help, required=True)
for _name, _value, _help in (
        ("max_seq_length", 64, "Tokens in a sequence."),
        ("train_batch_size", 32, "Sequences per step."),
        ("num_train_steps", 4000, "Training steps."),
        ("num_warmup_steps", 200, "Warm-up steps."),
        ("save_checkpoints_steps", 250, "Steps between evaluations."),
        ("max_eval_examples", 2048, "Number of records to evaluate."),
        ("random_seed", 1, "Seed of the weights, masks and order.")):
    flags.DEFINE_integer(_name, _value, _help, lower_bound=1)
flags.DEFINE_float("learning_rate", 5e-5,
                   "Learning rate; the default is that script's.", lower_bound=0.0)
flags.DEFINE_enum("dtype", "float32", [d for d in DTYPES if d != "float16"],
                  "Number type; bfloat16 uses the Trainer's autocast.")

_EVAL_BATCH = 64
_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions",
             "masked_lm_ids", "masked_lm_weights")


def heldout(path: str, most: int) -> dict[str, np.ndarray]:
    """Returns the first records of a file, by feature."""
    rows = {name: [] for name in _FEATURES}
    for _, data in zip(range(most), read_records(path)):
        found = Example.FromString(data).features.feature
        for name, row in rows.items():
            kind = "float_list" if name == "masked_lm_weights" else "int64_list"
            row.append(getattr(found[name], kind).value[:])
    return {name: np.array(row) for name, row in rows.items()}


def sequences(tokenizer, path: str, length: int) -> list[dict[str, list[int]]]:
    """Concatenates the tokens of all lines and cuts sequences; drops the remainder."""
    lines = [line for _, line in text_files.read_lines(path) if line.strip()]
    pieces = np.concatenate([np.array(row) for row in tokenizer(lines)["input_ids"]])
    count = len(pieces) // length
    return [{"input_ids": row.tolist()}
            for row in pieces[:count * length].reshape(count, length)]


def evaluate(torch, model, rows: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns loss and accuracy on the masked tokens of records."""
    model.eval()
    loss = right = total = 0.0
    with torch.no_grad():
        for begin in range(0, len(rows["input_ids"]), _EVAL_BATCH):
            part = {name: torch.tensor(values[begin:begin + _EVAL_BATCH])
                    for name, values in rows.items()}
            logits = model(
                input_ids=part["input_ids"], attention_mask=part["input_mask"],
                token_type_ids=part["segment_ids"]).logits
            logits = torch.take_along_dim(
                logits, part["masked_lm_positions"][:, :, None], 1).float()
            weights, ids = part["masked_lm_weights"], part["masked_lm_ids"]
            each = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), ids, reduction="none")
            loss += float((each * weights).sum())
            right += float(((logits.argmax(-1) == ids) * weights).sum())
            total += float(weights.sum())
    model.train()
    return {"masked_lm_loss": loss / total, "masked_lm_accuracy": right / total}


def main(_):
    try:
        torch, transformers = (imported("torch", "PyTorch"),
                               imported("transformers", "transformers"))
        imported("accelerate", "accelerate, which its Trainer needs,")
    except NotInstalled as error:
        raise InputError(f"{error}; pip install -r benchmarks/requirements.txt.") from error
    config = AlbertConfig.from_json_file(FLAGS.albert_config_file)
    files.make_directory(FLAGS.output_dir, "--output_dir")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.set_seed(FLAGS.random_seed)
    spiece = os.path.join(FLAGS.output_dir, "spiece.model")
    with files.open_binary(FLAGS.spm_model_file) as stream:
        files.write(spiece, stream.read())
    tokenizer = transformers.AlbertTokenizer.from_pretrained(FLAGS.output_dir)
    model = transformers.AlbertForMaskedLM(hf_config(
        config, max_position_embeddings=config.max_position_embeddings,
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob))
    rows = heldout(FLAGS.eval_input_file, FLAGS.max_eval_examples)
    saved = sorted((int(path.rpartition("-")[2]) for path in glob.glob(
        os.path.join(FLAGS.output_dir, "checkpoint-*"))), reverse=True)
    log = MetricsLog(FLAGS.output_dir, resume_step=saved[0] if saved else 0)

    class Evaluation(transformers.TrainerCallback):
        """Evaluates held-out records before each checkpoint."""

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % FLAGS.save_checkpoints_steps == 0:
                found = evaluate(torch, model, rows)
                log.write(state.global_step, "eval", found)
                print(f"step {state.global_step}: {found}", flush=True)

    trainer = transformers.Trainer(
        model=model, args=transformers.TrainingArguments(
            output_dir=FLAGS.output_dir, max_steps=FLAGS.num_train_steps,
            per_device_train_batch_size=FLAGS.train_batch_size,
            learning_rate=FLAGS.learning_rate, warmup_steps=FLAGS.num_warmup_steps,
            seed=FLAGS.random_seed, use_cpu=True,
            bf16=FLAGS.dtype == "bfloat16", save_steps=FLAGS.save_checkpoints_steps,
            save_total_limit=1, logging_steps=FLAGS.save_checkpoints_steps,
            report_to=[]),
        train_dataset=sequences(tokenizer, FLAGS.input_file, FLAGS.max_seq_length),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer),
        callbacks=[Evaluation()])
    trainer.train(resume_from_checkpoint=bool(saved))
    model.save_pretrained(FLAGS.output_dir)


if __name__ == "__main__":
    script.run(main)
