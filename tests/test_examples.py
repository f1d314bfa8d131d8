"""examples/: what the SLURM script makes of its surroundings; SLURM itself is a stand-in.

    python -m pytest tests/test_examples.py
"""

import json
import os
import subprocess

import pytest

from tests.helpers import ROOT

# Commands that the script calls; "python" writes down what it gets.
STAND_INS = {
    "srun": 'shift; for i in 0 1; do SLURM_PROCID=$i "$@" || status=$?; done; exit $status',
    "scontrol": '[ $1 = show ] && printf "node7\\nnode9\\n" || echo "$@"',
    "python": 'echo "$TF_CONFIG" | tr -d "\\n"; echo; echo "$@"; exit $STATUS',
}


@pytest.mark.parametrize("status, requeued", [(0, []), (1, []), (143, ["requeue 41"])])
def test_slurm(tmp_path, status, requeued):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    for name, code in STAND_INS.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{code}\n")
        path.chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "examples/slurm.sbatch", "--model=base", "--input_file=a b"],
        cwd=tmp_path, capture_output=True, text=True, env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "STATUS": str(status),
            "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "node[7,9]"})
    config0, flags, config1, _, *rest = done.stdout.splitlines()
    assert done.returncode == status and rest == requeued, done.stderr
    assert flags == ("run_pretraining.py --distribution_strategy=multi_worker_mirrored "
                     "--model=base --input_file=a b")
    for index, config in enumerate([config0, config1]):
        assert json.loads(config) == {
            "cluster": {"worker": ["node7:20042", "node9:20043"]},
            "task": {"type": "worker", "index": index}}
