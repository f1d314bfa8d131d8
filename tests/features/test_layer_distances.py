"""How far layers move their input: numbers against plain NumPy, any sharing, wrong
inputs.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import formats
from albert_tf.features import extract, layer_distances
from albert_tf.features.extract import Options
from tests.commands import run_commands
from tests.serving import tiny_models

TEXTS = ["It is.", "The first text of them is long. " * 9, "Größe", ("One.", "Two.")]


def expected(loaded, texts, max_length):
    """The values of all pieces, [3, layers, pieces]."""
    bert, inner, found = loaded.model.bert, loaded.config.inner_group_num, []
    for text in texts:
        batch = loaded.tokenizer(
            *([text] if isinstance(text, str) else text), max_length=max_length)
        out = bert(batch)
        states = [bert.encoder.enter(out["embedding_output"]).numpy(),
                  *(each.numpy() for each in out["encoder_outputs"][inner - 1::inner])]
        states = np.float64([state[0] for state in states])
        before, after = states[:-1], states[1:]
        cosine = (before * after).sum(-1) / np.linalg.norm(before, axis=-1) / (
            np.linalg.norm(after, axis=-1))
        found.append([np.linalg.norm(after - before, axis=-1), cosine,
                      np.degrees(np.arccos(cosine))])
    return np.concatenate(found, axis=-1)


@pytest.mark.parametrize("changes", [
    dict(parameter_sharing="none", embedding_size=16),
    dict(num_hidden_layers=4, num_hidden_groups=2),
    dict(num_hidden_layers=3, inner_group_num=2)])
def test_distances_are_those_of_all_pieces(changes, tmp_path):
    model = tiny_models.write(
        tmp_path / "model", "pretrained",
        config=dataclasses.replace(tiny_models.TINY, **changes))
    (tmp_path / "texts.txt").write_text("\n".join(
        text if isinstance(text, str) else "\t".join(text) for text in TEXTS))
    layers = range(changes.get("num_hidden_layers", 2) + 1)
    options = Options(["pieces"], layers, 20, 2).of(formats.read(model))
    found = layer_distances.measure(extract.stream(
        extract.load(model, options, None), extract.texts([str(tmp_path / "texts.txt")]),
        held=3))
    values = expected(albert_tf.load(model), TEXTS, 20)
    assert found["texts"] == len(TEXTS) and found["positions"] == values.shape[-1]
    for name, of_tokens in zip(layer_distances.MEASURES, values, strict=True):
        np.testing.assert_allclose(found[name]["mean"], of_tokens.mean(-1), rtol=1e-4)
        np.testing.assert_allclose(
            found[name]["standard_deviation"], of_tokens.std(-1), rtol=1e-3)
    assert found["l2_unevenness"] == pytest.approx(
        values[0].mean(-1).std() / values[0].mean(), rel=1e-3)


def test_states_that_are_alike():
    states = np.float64([[[3, 4], [3, 4]], [[1, 0], [0, 2]], [[0, 0]] * 2, [[0, 0], [0, 5]]])
    np.testing.assert_allclose(layer_distances.moved(states)[..., 0], [
        [0, 5 ** 0.5, 0, 5], [1, 0, 1, 0], [0, 90, 0, 90]], atol=1e-6)


# ---- the command -----------------------------------------------------------


@pytest.mark.long
def test_the_command(tmp_path):
    model = tiny_models.write(tmp_path / "model", "pretrained")
    deep = tiny_models.write(tmp_path / "a,b", "classes", config=dataclasses.replace(
        tiny_models.TINY, parameter_sharing="none", num_hidden_layers=3))
    shutil.copytree(model, tmp_path / "without")
    (tmp_path / "without/albert_config.json").unlink()
    (tmp_path / "texts.txt").write_text("It is.\n\nOne.\tTwo.\n")
    (tmp_path / "empty.txt").write_text(" \n\n")
    common = [f"--model={model}", f"--input_file={tmp_path}/texts.txt"]
    wrong = {
        "--titles=A,B": [*common, "--titles=A,B"],
        "albert_config.json": [f"--model={tmp_path}/without", common[1]],
        "--input_file": [common[0], f"--input_file={tmp_path}/empty.txt"],
        "--picture: .*--model": [*common, f"--picture={model}/albert_config.json"]}
    with run_commands("analyze_layers", {**wrong, "config": [
            f"--model={tmp_path}/without", common[1],
            f"--albert_config_file={model}/albert_config.json"], "made": [
            f'--model={model},"{deep}"', common[1], "--titles=shared,apart",
            f"--output={tmp_path}/layers.json", f"--picture={tmp_path}/layers.png"]},
            light=wrong) as found:
        for pattern in wrong:
            found.refused(pattern, pattern)
        found.ok("config")
        found.ok("made")
    made = json.loads((tmp_path / "layers.json").read_text())["models"]
    shared, apart = made["shared"], made["apart"]
    assert len(shared["l2_distance"]["mean"]) == 2
    assert len(apart["degrees"]["standard_deviation"]) == 3
    assert shared["texts"] == apart["texts"] == 2
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")
