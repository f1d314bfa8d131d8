"""What README, docs and docstrings say is so: commands, examples, links, names."""

import collections
import importlib
import json
import re
import shlex

import pytest

import albert_tf
from albert_tf.cli.commands import COMMANDS, find
from albert_tf.tokenization import train_sentencepiece
from tests import peers
from tests.helpers import ROOT, run_python

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")),
         ROOT / "benchmarks/README.md", ROOT / "benchmarks/NOTES.md"]
SCRIPTS = sorted(ROOT.glob("*.py"))
BENCHMARKS, EXPERIMENTS = (
    [path for path in sorted((ROOT / name).glob("*.py")) if path.stem != "__init__"]
    for name in ("benchmarks", "experiments"))

# In a process of its own, and each script in a fork of it, since scripts define flags
# of the same names. What all import is imported before.
PARSE = """
import importlib, json, os, sys
import numpy
from absl import flags
from absl.testing import flagsaver
from albert_tf.cli import flags as cli_flags

for name, commands in json.load(sys.stdin).items():
    child = os.fork()
    if not child:
        try:
            module = importlib.import_module(name)
            defined = sorted(flags.FLAGS) if (
                hasattr(module, "FLAGS") or hasattr(module, "main")) else None
            print(json.dumps([name, "", defined]), flush=True)
            # --help must come at once, and the scripts that create data never load it.
            if "." not in name and "tensorflow" in sys.modules:
                print(json.dumps([name, "loads TensorFlow", []]), flush=True)
        except BaseException as error:
            print(json.dumps([name, f"{type(error).__name__}: {error}", []]),
                  flush=True)
            os._exit(0)
        for command in commands if defined else ():
            try:
                with flagsaver.flagsaver():
                    flags.FLAGS([name, *["--output_dir=x"] * (
                        "output_dir" in flags.FLAGS), *command])
            except BaseException as error:
                print(json.dumps([" ".join([name, *command]), str(error), []]),
                      flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def commands_in(text):
    """(module, words) of each `python script.py ...`, `albert command ...` or
    `python -m benchmarks...`, `experiments...`."""
    text = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda code: code[0].replace("\n", " "), text)
    text = re.sub(r"\\+\n *", "", text)
    text = re.sub(
        r"(?<![\w/.-])albert (\w+)(?= +[-'\"])",
        lambda match: f"python {COMMANDS[find(match[1])][0]}.py", text)
    for name, words in re.findall(
            r"python (?:-m )?((?:benchmarks|experiments)\.\w+|\w+\.py\b)([^\n`]*)",
            text):
        # What follows three spaces explains the command.
        words = re.sub(r"[\[\]]", "", words.split("   ")[0])
        words = [word for word in shlex.split(words, comments=True)
                 if word not in ("...", "--help")]
        if words:
            yield name.removesuffix(".py"), words


@pytest.fixture(scope="module", name="parsed")
def _parsed():
    """(module or command, error, flags of the module)."""
    texts = [path.read_text(encoding="utf-8")
             for path in (*PAGES, *SCRIPTS, *BENCHMARKS, *EXPERIMENTS)]
    commands = {**{path.stem: [] for path in SCRIPTS},
                **{f"{path.parent.name}.{path.stem}": []
                   for path in (*BENCHMARKS, *EXPERIMENTS)}}
    for text in texts:
        for name, words in commands_in(text):
            commands[name].append(words)
    assert sum(map(len, commands.values())) > 50
    done = run_python("-c", PARSE, input=json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()
            if line.startswith("[")]


def test_scripts_and_benchmarks_start_and_understand_the_commands_of_the_texts(parsed):
    errors = [(command, error) for command, error, _ in parsed if error]
    assert not errors
    assert {name for name, _, _ in parsed} >= {path.stem for path in SCRIPTS}


def test_every_flag_that_is_named_exists(parsed):
    known = {flag for _, _, defined in parsed for flag in defined or ()}
    known |= {f"no{flag}" for flag in known}
    others = {"no-deps", "flink_master", "durations", "random-order", "logdir", "help",
              "helpfull", "flagfile",
              "dir", "tag_set", "signature_def", "input_exprs"}  # saved_model_cli's
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--(\w[\w-]*)", page.read_text("utf-8")))
        assert not named - known - others, page


# ---- Python ----------------------------------------------------------------


@pytest.fixture(scope="module", name="albert_base")
def _albert_base(tmp_path_factory):
    """A tiny model under the released files' names."""
    folder = tmp_path_factory.mktemp("albert_base")
    words = "all some many few".split() * 9
    text = [f"albert shares its {word} layers in step {i}." for i, word in enumerate(words)]
    (folder / "30k-clean.model").write_bytes(train_sentencepiece.train(
        text, train_sentencepiece.Options(vocab_size=40)).model)
    config = albert_tf.AlbertConfig(
        vocab_size=40, embedding_size=4, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=8, max_position_embeddings=64)
    (folder / "albert_config.json").write_text(config.to_json())
    albert_tf.checkpoints.export_tf1(
        albert_tf.AlbertForPreTraining(config), str(folder / "model.ckpt-best"))
    return folder


def examples(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("code", examples(README))
def test_python_example_of_the_readme_runs(code, albert_base):
    code, _, _ = code.partition("classifier =")  # scripts/test_readme_commands.py
    assert '"albert_base"' in code
    names = {}
    exec(code.replace("albert_base", str(albert_base)), names)
    length = names["batch"]["input_ids"].shape[1]
    assert length > 3
    assert names["out"]["pooled_output"].shape == [1, 8]
    assert names["out"]["sequence_output"].shape == [1, length, 8]
    assert not names["report"].missing


def test_names_and_files_that_are_mentioned_exist():
    for page in PAGES:
        for dotted in re.findall(r"\balbert_tf((?:\.\w+)+)", page.read_text("utf-8")):
            found = albert_tf
            for name in dotted.split(".")[1:]:
                found = (getattr(found, name) if hasattr(found, name) else
                         importlib.import_module(f"{found.__name__}.{name}"))
        for file in re.findall(r"`((?:albert_tf|tests|benchmarks|experiments|docs)/[\w/.]+)`",
                               page.read_text("utf-8")):
            assert (ROOT / file).exists(), f"{page}: {file}"


def without_code(text):
    return re.sub(r"```.*?```|^    [^\n]*$", "", text, flags=re.S | re.M)


def anchors(page):
    """The anchors of a page's headings, as GitHub and `make docs` form them."""
    headings = re.findall(r"^#+ +(.+?) *$", without_code(page.read_text("utf-8")), re.M)
    seen = collections.Counter()
    for heading in headings:
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w -]", "", text).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.relative_to(ROOT)}")
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_the_site_has_every_page():
    """mkdocs.yml lists the pages that there are; `make docs` needs mkdocs, this does not."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    listed = {name if "/" in name or name == "CHANGELOG.md" else f"docs/{name}"
              for name in re.findall(r"[\w/]+\.md", text)} - {"docs/index.md"}
    pages = {path.relative_to(ROOT).as_posix() for path in PAGES} - {"README.md"}
    assert listed == pages | {"CHANGELOG.md"}


def test_peers_of_formats_are_those_of_their_environments():
    """Versions in the table are the pinned ones, and -k takes each name."""
    rows = re.findall(r"^\| (\S+) (\d[\d.]+)[^|]* \| `(\w+)` \|",
                      (ROOT / "docs/FORMATS.md").read_text(encoding="utf-8"), re.M)
    pins = "".join(path.read_text(encoding="utf-8") for path in peers.HERE.iterdir()
                   if path.suffix in (".txt", ".json", ".py"))
    assert sorted(name for _, _, name in rows) == sorted([*peers.PEERS, "transformers_js"])
    for library, version, _ in rows:
        assert f"{library}=={version}" in pins or f'"{library}": "{version}"' in pins
