"""prepare_corpus: reading, splitting into sentences, holding documents out."""

import bz2
import collections
import gzip
import itertools
import json

import pytest

from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.text import prepare as prepare_module
from albert_tf.text import readers
from albert_tf.text.languages import (
    check_language, clean_text, cut_long, split_sentences)
from albert_tf.text.prepare import (
    Options, Splitter, Summary, document_sentences)
from albert_tf.text.prepare import prepare as prepare_documents
from tests import row_tables
from tests.commands import run_commands
from tests.helpers import SHARED


def read(path, counts=None, **layout):
    return list(readers.read_documents(
        [str(path)], readers.Layout(**layout),
        collections.Counter() if counts is None else counts))


def prepare(tmp_path, texts, **options):
    """Writes documents given as texts; returns both files' documents, summary."""
    summary = Summary()
    paths = tmp_path / "train.txt", tmp_path / "heldout.txt"
    with open(paths[0], "wb") as train, open(paths[1], "wb") as heldout:
        prepare_documents(
            (("", "\n".join(document_sentences(
                readers.Document([text]), Options(**options), summary.dropped)))
             for text in texts),
            Options(**options), train,
            heldout if "heldout_share" in options else None, summary)
    return [[d.split("\n") for d in p.read_text(encoding="utf-8").split("\n\n") if d]
            for p in paths], summary


ARTICLES = [f"The mill number {i} stands by the river. It grinds corn {i} days long."
            for i in range(400)]


# Sentences.

@pytest.mark.parametrize("language, sentences", [
    ("en", ["Mr. Smith met Dr. Jones in the U.S. on Jan. 3.",
            "They like tools, e.g. saws, i.e. blades.", '"Why?" she asked.',
            "It cost $3.50 (see Fig. 2)."]),
    ("en", ['He said "Stop." ', "Then he left."]),
    ("en", ["The list is long.", "1. First comes salt.", "2. Then comes oil."]),
    ("de", ["Das ist z. B. ein Satz.", "Er kam am 3. Mai an.", "Dr. Berg lachte."]),
    ("fr", ["Elle est venue à 3 h.", "Il est parti !", "Pourquoi ?"]),
    ("zh", ["今天很冷。", "他说：“我不去！”", "你去吗？", "好。"]),
    ("ja", ["雨が降っています。", "寒いですか？", "はい。"]),
    ("hi", ["यह एक घर है।", "वह बड़ा है।"]),
    ("km", ["គាត់ទិញបន្លែ ។ល។", "គាត់ទៅផ្ទះ។", "«ខ្ញុំទៅ។»", "គាត់និយាយ៕"]),
    ("bo", ["༄༅། ང་བོད་པ་ཡིན།།", "བཀྲ་ཤིས་བདེ་ལེགས། །", "བདེ་པོ་ཡིན།"]),
    ("th", ["ผมชอบอ่านหนังสือทุก ๆ วัน", "เขาดูหนัง ในปี 2540 อากาศดี", "เราไปเดินเล่น"]),
    ("lo", ["ຂ້ອຍມັກອ່ານປຶ້ມຢູ່ເຮືອນ", "ລາວມັກເບິ່ງໜັງ"]),
])
def test_sentences_of_several_languages(language, sentences):
    glue = "" if language in ("zh", "ja") else " "
    wanted = [s.strip() for s in sentences]
    assert split_sentences(glue.join(wanted), language) == wanted


@pytest.mark.parametrize("mark", ['"', "(", "“", "'"])
def test_a_mark_never_closed_swallows_nothing(mark):
    sentences = [f"In year {i} the old town built one more bridge." for i in range(20)]
    text = f"{mark}{' '.join(sentences)} The \"end\" came. It (the end) was near."
    found = split_sentences(text)
    assert len(found) == 22 and found[5] == sentences[5]
    assert "".join("".join(found).split()) == "".join(text.split())


def test_marks_stay_with_their_sentence_in_a_long_quotation():
    chinese = "他走了很远的路也没有回来过。" * 10
    found = split_sentences(f"“{chinese}”然后天黑了。“好。”", "zh")
    assert found[0].startswith("“")
    assert [found[9][-2:], *found[10:]] == ["。”", "然后天黑了。", "“好。”"]
    found = split_sentences(f"（{chinese}“好的”他说。）天黑了。", "zh")
    assert found[10:] == ["“好的”他说。）", "天黑了。"]


def test_cleaning():
    assert [*map(check_language, ("pt-BR", "zh_Hans", "ZH", "yue"))] == [
        "pt", "zh", "zh", "yue"]
    text = "a\x00b\u200b c\u00a0 \t d\ufeff\u3000e\u00ad f\u200cg"
    assert clean_text(text) == ("ab c d e f\u200cg", 4)


@pytest.mark.parametrize("text, most, parts", [
    ("word " * 19 + "word", 50, [" ".join(["word"] * 10)] * 2),
    ("一二三四五，" * 4, 20, ["一二三四五，" * 3, "一二三四五，"]),
    ("x" * 45, 20, ["x" * 20, "x" * 20, "x" * 5])])
def test_cutting_long_sentences(text, most, parts):
    assert cut_long(text, most) == parts


# Reading.

def test_plain_text_by_file_and_by_blank_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffOne.\r\n\r\n\r\nTwo.\n \nThree.".encode())
    assert read(path) == [readers.Document(["One.", "Two.", "Three."])]
    path.write_bytes(path.read_bytes().replace(b"\n \n", "\n\u200b\u00ad\n".encode()))
    assert read(path, document_separator="blank_line") == [
        readers.Document([text]) for text in ("One.", "Two.", "Three.")]


@pytest.mark.parametrize("lines, line_breaks, paragraphs", [
    (["It runs through a green val-", "ley and comes", "to the town. "], "join", [
        "It runs through a green val-ley and comes to the town."]),
    (["The river is long.", "It runs."], "keep", ["The river is long.", "It runs."]),
    (["春眠不觉晓，处处", "闻啼鸟。夜来风雨", "声。"], "join", [
        "春眠不觉晓，处处闻啼鸟。夜来风雨声。"]),
    (["old\rMac\x0cpage"], "keep", ["old", "Mac", "page"])])
def test_line_breaks(lines, line_breaks, paragraphs):
    assert readers.paragraphs_of(lines, line_breaks) == paragraphs


WIKI = """<doc id="1" url="u" title="Mill &amp; Co">
Mill &amp; Co

The mill () grinds corn &lt;br&gt; and H&lt;sub&gt;2&lt;/sub&gt;O is wet (, ).
History.

</doc>
<doc id="2" url="u" title="Stub">
Stub

</doc>
"""


def test_wikiextractor(tmp_path):
    path, counts = tmp_path / "wiki_00", collections.Counter()
    path.write_text(WIKI)
    first, second = read(path, counts)
    assert document_sentences(first, Options(), counts) == [
        "The mill grinds corn and H2O is wet.", "History."]
    assert second.paragraphs == []
    assert counts == {"title lines": 2, "tags": 3, "empty parentheses": 2}
    assert read(path, keep_titles=True)[0].paragraphs[0] == "Mill &amp; Co"


@pytest.mark.parametrize("text, wanted, removed", [
    ("1<p and q>1, 0<s≤1 and t>2, a<b but c>d, 若a<b且c>d, k<s i=5>j", None, 0),
    ("List<int> List<i> P<q>r, <p@x.org> <s.smith@y.com> a->b <-> <p->", None, 0),
    ("a<br>b<BR />c</p> <p>d", "a b c   d", 4),
    ('<ref name="a>b" />x<ref name=x>y</ref>', " x y ", 3),
    ("<span\nclass='q'>t</span\n>, <td nowrap>u<ol start=3>", "t,  u ", 4),
    ("x<!-- a\nb -->y 文<small>粗</small>巴黎()", "xy 文粗巴黎", 4)])
def test_what_is_a_tag(text, wanted, removed):
    counts = collections.Counter()
    found = readers.without_markup(text.split("\n"), counts)
    assert ("\n".join(found), counts.total()) == (wanted or text, removed)


@pytest.mark.parametrize("name, compress", [
    ("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.txt.bz2", bz2.compress)])
def test_json_lines_and_compression(tmp_path, name, compress):
    path = tmp_path / name
    lines = [{"id": 1, "body": "One. Two.\n\nThree."}, {"body": ""}]
    path.write_bytes(compress("\n".join(map(json.dumps, lines)).encode()))
    found = read(path, json_field="body")
    assert [d.paragraphs for d in found] == [["One. Two.", "Three."], []]


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"good\nb\xffd\n", r"a\.txt, line 2: byte 2 is not UTF-8"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not JSON"),
    ("a.jsonl", b'{"body": "a"}\n', r"line 1: .*no column 'text'.*'body'.*--json_field"),
    ("a.json", b'[1, 2]\n', "line 1: not a JSON object"),
    ("wiki_00", b'<doc id="1" title="A">\nA\n', r"wiki_00, line 1: a <doc> without </doc>"),
    ("wiki_00", b'<doc title="A">\n<doc title="B">\n', r"line 1: a <doc> without"),
    ("wiki_00", b'<doc title="A">\n</doc>\nxyz\n', r"line 3: .* or text outside"),
])
def test_damaged_input(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_corpus_read_as_one_document(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("Some text.\n\n" * 100)
    monkeypatch.setattr(readers, "MAX_DOCUMENT_CHARS", 500)
    with pytest.raises(InputError, match="--document_separator=blank_line"):
        read(path)
    assert len(read(path, document_separator="blank_line")) == 100


# Preparing.

def test_held_out_documents_stay_when_input_is_added(tmp_path):
    (_, few), summary = prepare(tmp_path, ARTICLES[:200], heldout_share=0.1)
    (train, many), _ = prepare(tmp_path, ARTICLES[::-1], heldout_share=0.1)
    old, new = {d[0] for d in few}, {d[0] for d in many}
    assert 8 <= len(few) <= 35 and summary.heldout["documents"] == len(few)
    assert old == new & {ARTICLES[i].split(". ")[0] + "." for i in range(200)}
    assert not new & {d[0] for d in train} and len(train) + len(many) == 400
    (_, other), _ = prepare(tmp_path, ARTICLES[:200], heldout_share=0.1, random_seed=1)
    assert {d[0] for d in other} != old


@pytest.mark.parametrize("deduplicate", ["documents", "sentences", "none"])
def test_no_text_on_both_sides(tmp_path, deduplicate):
    texts = ARTICLES[:200] + [t.replace(" ", "  ").upper() for t in ARTICLES[:200]]
    (train, heldout), _ = prepare(
        tmp_path, texts, deduplicate=deduplicate, heldout_share=0.3)
    sides = [{"".join(d).lower() for d in side} for side in (train, heldout)]
    assert not sides[0] & sides[1]
    assert len(train) + len(heldout) == (400 if deduplicate == "none" else 200)


def test_duplicates_and_limits_are_counted(tmp_path):
    texts = ["One is here. Two is there.", "ONE is here.  Two is there.",
             "One is here. Three is new. No.", "  ", "Alone it is.",
             "Four is here. " + " ".join(map(str, range(40))) + " ends."]
    (train, _), summary = prepare(
        tmp_path, texts, deduplicate="sentences", min_sentence_chars=5,
        min_document_sentences=2, max_sentence_chars=40)
    assert train[0] == ["One is here.", "Two is there."]
    assert train[1][0] == "Four is here."
    assert len(train) == 2 and max(map(len, train[1])) <= 40
    assert summary.dropped == {
        "duplicate documents": 1, "duplicate sentences": 1,
        "sentences that are too short": 1, "documents without text": 1,
        "documents with too few sentences": 2,
        "sentences of documents with too few": 2,
        "sentences cut up, not dropped": 1}
    assert summary.documents_read == 6
    assert summary.training["bytes"] == (tmp_path / "train.txt").stat().st_size


@pytest.mark.parametrize("texts, options, message", [
    ([" ", ""], {}, "none of the 2 .* left to train on .*'documents without text': 2"),
    (ARTICLES[:3], {"heldout_share": 0.0001}, "none of the 3 documents is held out"),
    (ARTICLES[:3], {"heldout_share": 1}, "none .* is left to train on"),
])
def test_nothing_left(tmp_path, texts, options, message):
    with pytest.raises(InputError, match=message):
        prepare(tmp_path, texts, **options)


# The script.


@pytest.fixture(scope="module", name="run")
def _run():
    """Runs the script, which must succeed, in a process that all share: its log."""
    with run_commands("prepare_corpus", {}) as results:
        def run(*flags):
            result = results.run(flags)
            assert result["status"] == 0, result["stderr"]
            return result["log"]

        yield run


def test_script(tmp_path, run):
    """Texts of files, of which the language is kept beside the corpus."""
    for i in range(30):
        (tmp_path / f"{i}.txt").write_text(ARTICLES[i])
    flags = [f"--input_file={tmp_path}/*.txt", f"--output_file={tmp_path}/o/train",
             f"--heldout_file={tmp_path}/o/heldout", "--heldout_share=0.2"]
    run(*flags, "--language=kk-KZ")
    for name in ("train", "heldout"):
        assert json.loads((tmp_path / f"o/{name}.language.json").read_text()) == {
            "language": "kk", "strip_accents": False, "word_start": "sentencepiece"}
    assert "single document" not in run(*flags)
    summary = json.loads((tmp_path / "o/train.summary.json").read_text())
    assert [summary[side][of] for side in ("training", "heldout")
            for of in ("documents", "sentences")] == [23, 46, 7, 14]
    assert summary["dropped"] == {}
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        "heldout", "train", "train.summary.json"]
    assert "single document" in run(
        f"--input_file={tmp_path}/1.txt", f"--output_file={tmp_path}/one")


def test_script_samples_sources(tmp_path, run):
    """Shares change, the total and the held-out documents do not; 1 changes nothing."""
    for name, number in (("en", 160), ("fi", 10)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(
            f"The {name} story {i}. " * (1 + i % 4) for i in range(number)))

    def written(folder, *flags):
        run(f"--input_file={tmp_path}/en.txt,{tmp_path}/fi.txt", *flags,
            f"--output_file={tmp_path}/{folder}/o", "--heldout_share=0.1",
            f"--heldout_file={tmp_path}/{folder}/h", "--document_separator=blank_line")
        summary = json.loads((tmp_path / folder / "o.summary.json").read_text())
        del summary["seconds"]
        return [*((tmp_path / folder / name).read_bytes() for name in "oh"), summary]

    plain = written("a")
    assert written("b", "--sampling_exponent=1") == plain
    sampled = written("c", "--sampling_exponent=0.5")
    assert written("d", "--sampling_exponent=0.5", "--random_seed=1") != sampled
    assert sampled[1] == plain[1]
    for name, counts in zip((b"en", b"fi"), sampled[2]["sources"].values()):
        assert counts == {"sentences": plain[0].count(b"The %s story" % name),
                          "written": sampled[0].count(b"The %s story" % name)}
    assert sampled[2]["training"]["sentences"] == pytest.approx(
        plain[2]["training"]["sentences"], abs=6)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_is_resumed(tmp_path, monkeypatch, workers):
    """What was split is not split again, and nothing else in the folder is touched."""
    monkeypatch.setattr(prepare_module, "_UNIT_CHARS", 200)
    documents = [readers.Document([text], "en" * (i % 2))
                 for i, text in enumerate(ARTICLES[:20])]
    folder = WorkFolder(str(tmp_path))
    splitter, handed = Splitter(Options(), folder), []

    def split(number):
        units = [(name, held) for name, held in splitter.units(documents)]
        handed.append([len(held) for _, held in units])
        with parallel.WorkerPool(splitter, workers) as pool:
            for name in itertools.islice(pool.in_order(units, "splitting"), number):
                yield from splitter.read([name], collections.Counter())

    (tmp_path / "mine").write_text("kept")
    with pytest.raises(KeyboardInterrupt), folder.used({}, []):
        collections.deque(split(3), maxlen=0)
        raise KeyboardInterrupt
    with folder.used({}, []):
        assert list(split(None)) == [
            (each.source, "\n".join(split_sentences(each.paragraphs[0])))
            for each in documents]
    assert handed[0] == [4, 4, 3, 3, 3, 3] and handed[1][:3] == [0] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


WRONG = {  # message → flags, besides (or instead of) the input and the output
    "no file matches": ["--input_file={0}/nothing*"],
    "a.txt is also an input (--input_file ": ["--summary_file={0}/../{0.name}/a.txt"],
    "is also --output_file": ["--heldout_file={0}/o"],
    "cannot be written": ["--output_file={0}/a.txt/o"],
    "only with --heldout_file": ["--heldout_share=0.1"],
    "--language=english": ["--language=english"],
    "--max_sentence_chars=3 is too small": ["--max_sentence_chars=3"],
    "--sampling_exponent=0.7": ["--sampling_exponent=0.7"],
    "--sampling_exponent=0 ": ["--sampling_exponent=0"],
}


@pytest.fixture(scope="module", name="refused")
def _refused(tmp_path_factory):
    """message → folder, result; all in one process, which never loads TensorFlow."""
    folders = {message: tmp_path_factory.mktemp("wrong") for message in WRONG}
    for folder in folders.values():
        (folder / "a.txt").write_text("Some text.\n")
    commands = {message: [flag.format(folders[message]) for flag in (
        "--input_file={0}/a.txt", "--output_file={0}/o", *flags)]
        for message, flags in WRONG.items()}
    with run_commands("prepare_corpus", commands, light=commands) as results:
        yield {message: (folders[message], results[message]) for message in WRONG}


@pytest.mark.parametrize("message", WRONG)
def test_script_refuses(refused, message):
    folder, result = refused[message]
    assert result["status"] == 1 and not result["loaded"]
    assert message in result["stderr"]
    assert [path.name for path in folder.iterdir()] == ["a.txt"]
    assert (folder / "a.txt").read_text() == "Some text.\n"


# Real data.

@pytest.mark.shared
def test_real_wikiextractor_output(tmp_path, run):
    run(f"--input_file={SHARED}/data/wiki_en/raw/wiki_0[01]",
        f"--output_file={tmp_path}/train", f"--heldout_file={tmp_path}/heldout")
    summary = json.loads((tmp_path / "train.summary.json").read_text())
    assert summary["documents_read"] == 3581
    assert summary["dropped"]["documents without text"] == 2466
    assert 0.02 < summary["heldout_share_of_characters"] < 0.12
    text = (tmp_path / "train").read_text()
    assert "<doc" not in text and "&lt;" not in text


# Parquet and Arrow (tests/test_rows.py has the files themselves).

@pytest.mark.parametrize("name", ["wiki.parquet", "wiki.arrow"])
def test_rows_are_documents(tmp_path, name):
    path = row_tables.write(tmp_path / name, row_tables.table({
        "text": ["The mill.\n\nIt grinds corn.", "The river."], "title": ["Mill", None]}))
    assert [document.paragraphs for document in read(path)] == [
        ["The mill.", "It grinds corn."], ["The river."]]
    for field, message in (("body", ": .*'body'.*'text', 'title'.*--json_field"),
                           ("title", ", row 2: .*'title'")):
        with pytest.raises(InputError, match=name + message):
            read(path, json_field=field)
