"""Texts and tasks of a few lines, in the layout of --data_dir; scripts in one process
each."""

import itertools
import json
import random

from tests.commands import Commands

# As many as a vocabulary of 450 pieces needs, made of two parts each.
_NOUNS = ["".join(parts) for parts in itertools.product(
    "bar cel dim fon gur han jel kim lop mun nar pel rin sot tuv wex".split(),
    "ado ebi ifu oga uke ane ilo opi ure asi etu ovo izu uwa eda oce".split())]
_VERBS = "shares reads follows keeps finds crosses covers".split()


def _sentence(draw) -> str:
    return (f"The {draw.choice(_NOUNS)} {draw.choice(_VERBS)} a {draw.choice(_NOUNS)} "
            f"near the {draw.choice(_NOUNS)} number {draw.randrange(10000)}.")


def _article(draw) -> list[str]:
    return [_sentence(draw) for _ in range(draw.randrange(6, 12))]


def _squad(draw, index: int) -> dict:
    passage = " ".join(_article(draw))
    return {"title": str(index), "paragraphs": [{"context": passage, "qas": [{
        "id": f"q{index}", "question": "Near what is it?",
        "answers": [{"text": "The", "answer_start": passage.index("The")}]}]}]}


def write(folder) -> dict[str, str]:
    """The flags that lead there."""
    draw = random.Random(1)
    for name, articles in (("train", 80), ("dev", 12)):
        (folder / f"{name}.txt").write_text("\n\n".join(
            "\n".join(_article(draw)) for _ in range(articles)) + "\n")
    for task, header in (("SST-2", "sentence\tlabel"), (
            "MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String")):
        (folder / "glue" / task).mkdir(parents=True)
        for split in ("train", "dev"):
            lines = [f"{_sentence(draw)}\t{i % 2}" if task == "SST-2" else
                     f"{i % 2}\t{i}\t{i}\t{_sentence(draw)}\t{_sentence(draw)}"
                     for i in range(8)]
            (folder / "glue" / task / f"{split}.tsv").write_text(
                "\n".join([header, *lines]) + "\n")
    (folder / "squad").mkdir()
    (folder / "squad" / "dev-v1.1.json").write_text(json.dumps(
        {"version": "1.1", "data": [_squad(draw, index) for index in range(12)]}))
    (folder / "race" / "dev" / "high").mkdir(parents=True)
    for index in range(4):
        (folder / "race" / "dev" / "high" / f"{index}.txt").write_text(json.dumps({
            "article": " ".join(_article(draw)), "id": f"high{index}.txt",
            "questions": ["What?"], "options": [["a", "b", "c", "d"]],
            "answers": ["A"]}))
    return {"text": f"{folder}/train.txt", "heldout_text": f"{folder}/dev.txt",
            "data_dir": str(folder)}


class Scripts:
    """In place of runs.run_script. `ran` are the names of what ran."""

    def __init__(self):
        self.ran, self._started = [], {}

    def __call__(self, script: str, **flag_values) -> None:
        self.ran.append(script)
        if script == "benchmarks.training":  # Measured in a test of its own.
            seconds = {"seconds": {"ours": {"cores": float(len(flag_values["model"]))}}}
            with open(flag_values["output"], "w", encoding="utf-8") as stream:
                json.dump({"results": [seconds]}, stream)
            return
        name = script.removesuffix(".py")
        started = self._started.setdefault(name, Commands(name, {}))
        result = started.run([f"--{flag}={value}" for flag, value in flag_values.items()
                              if value is not None])
        assert result["status"] == 0, (script, flag_values, result["stderr"])

    def close(self):
        for started in self._started.values():
            started.close()
