r"""Fine-tunes ALBERT to classify texts: the GLUE tasks, or your own data.

    python run_classifier.py --task_name=sst-2 --data_dir=glue --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/sst-2 --do_train --do_eval --do_predict

    python run_classifier.py --task_name=custom --train_file=train.csv \
        --dev_file=dev.csv --text_column=review --label_column=stars ...

Once the model is trained, --do_predict needs only --output_dir and the data:

    python run_classifier.py --output_dir=runs/sst-2 --data_dir=glue --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

from albert_tf.cli import finetune
from albert_tf.finetuning.classification.command import ClassificationCommand

finetune.define_options(ClassificationCommand)


def main(argv):
    finetune.run(ClassificationCommand)


if __name__ == "__main__":
    script.run(main, first_flags=finetune.first_flags(ClassificationCommand))
