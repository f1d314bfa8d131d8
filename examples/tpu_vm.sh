#!/bin/bash
# Pretraining on a TPU VM or pod slice of Google Cloud, started on your own machine in the
# clone. It has not been tried: the project had no TPU.
#
#     TPU=albert ZONE=us-central1-a TYPE=v3-8 RUNTIME=tpu-vm-tf-2.18.0-pjrt \
#         examples/tpu_vm.sh --tpu=local --output_dir=gs://BUCKET/runs/base ...
#
# What follows the name are flags of run_pretraining.py; on a pod give --tpu=$TPU.
# docs/ACCELERATORS.md says which runtime suits which TPU.
set -euo pipefail

vm() { gcloud compute tpus tpu-vm "$1" "$TPU" --zone="$ZONE" "${@:2}"; }

vm describe > /dev/null 2>&1 ||
    vm create --accelerator-type="$TYPE" --version="$RUNTIME" --spot
git archive --output=albert_tf.tar HEAD
gcloud compute tpus tpu-vm scp albert_tf.tar "$TPU:" --zone="$ZONE" --worker=all
vm ssh --worker=all --command="mkdir -p albert_tf && tar -xf albert_tf.tar -C albert_tf &&
    cd albert_tf && pip install --quiet . scikit-learn scipy 'sentencepiece==0.2.0' &&
    pip install --quiet --no-deps tf_keras==2.18.0 tf-models-official==2.18.0"
# Worker 0 alone starts the run, which resumes after a preemption.
vm ssh --worker=0 --command="cd albert_tf &&
    TPU_LOAD_LIBRARY=$([[ $TYPE == *-8 ]] && echo 1 || echo 0) python3 run_pretraining.py $(printf ' %q' "$@")"
