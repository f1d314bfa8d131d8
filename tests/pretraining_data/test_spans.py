"""Documents read in parallel: any cutting gives the same, wrong files are named."""

import bz2
import gzip
import io
import itertools
import lzma
import pathlib
import random
import re
import tempfile

import hypothesis
import pytest
from hypothesis import strategies as st

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.pretraining_data.spans import plan_spans, read_span
from albert_tf.text import readers
from albert_tf.tokenization.cleaning import preprocess_text
from tests.pretraining_data.data_creation import written

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress,
            ".xz": lzma.compress, ".zst": text_files.zstd.compress}
# Blank are also lines of nothing but combining characters, or an old separator.
TEXTS = ["one", "two words", "drei W\u00f6rter", "\u4e2d\u6587", "a\0b", "", "", " \t",
         "\u0301\u0308", "\x1c", "\u00a0", "\U0001f600 four five six seven eight"]


def prepare(lines):
    return [preprocess_text(line).strip() for line in lines]


def documents(paths, spans, **sizes):
    """[(id, prepared lines)] of spans, each of which is read for itself."""
    found = []
    for span in spans:
        own = []
        for block in read_span(paths, span, prepare, **sizes):
            assert block.lines and (own or block.first[:1] == [0])
            bounds = [*block.first, len(block.lines)]
            if own:
                own[-1][1].extend(block.lines[:bounds[0]])
            own += [(i, block.lines[a:b])
                    for i, (a, b) in zip(block.ids, itertools.pairwise(bounds))]
        found += own
    return found


def expected_documents(contents):
    """The same from the files' bytes, by the definition."""
    found, blank = [], True
    for number, content in enumerate(contents):
        place = 0
        for raw in io.BytesIO(content):
            text = raw.decode().rstrip("\r\n")
            [line] = prepare([text.removeprefix("\ufeff") if not place else text])
            if line and blank:
                found.append((number << 44 | place, []))
            if line:
                found[-1][1].append(line)
            blank = not line
            place += len(raw)
    return found


def write_files(folder, contents, endings):
    paths = []
    for number, (content, ending) in enumerate(zip(contents, endings)):
        path = folder / f"{number}.txt{ending}"
        path.write_bytes(COMPRESS[ending](content))
        paths.append(str(path))
    return paths


FILES = st.tuples(
    st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(["\n", "\n", "\r\n"]))),
    st.booleans(), st.booleans()).map(
        lambda drawn: ("\ufeff" * drawn[1] + "".join(map("".join, drawn[0]))).encode()
        .removesuffix(b"\n" if drawn[2] else b"never"))


@hypothesis.settings(deadline=None, max_examples=80, derandomize=True)
@hypothesis.given(
    files_of=st.lists(st.tuples(FILES, st.sampled_from(["", "", *COMPRESS])),
                      min_size=1, max_size=4),
    size=st.integers(0, 60), block_bytes=st.integers(1, 40))
def test_any_cutting_gives_the_same_documents(files_of, size, block_bytes):
    contents, endings = zip(*files_of)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(pathlib.Path(folder), contents, endings)
        assert read_all(paths, size, block_bytes=block_bytes) == (
            expected_documents(contents))


def test_spans(tmp_path):
    text = b"word\n" * 200
    paths = write_files(tmp_path, [text] * 6, ["", ".gz", "", "", ".xz", ""])
    for size in (1, 100, 999, 1000, 1001, 2500, 10**9):
        spans = plan_spans(paths, size)
        assert spans == plan_spans(paths, size)
        assert [span.number for span in spans] == list(range(len(spans)))
        # Each begins where the one before ends, and only in a file that can be cut.
        assert [(0, 0), *(span[3:5] for span in spans)] == [
            *(span[1:3] for span in spans), (6, 0)]
        assert all(place == 0 or not paths[file].endswith(text_files.COMPRESSED)
                   for _, file, place, *_ in spans)
        assert max(span.num_bytes for span in spans[:-1] or spans) <= size + 1000
        total = sum(files.size(p) * (4 if p.endswith(text_files.COMPRESSED) else 1)
                    for p in paths)
        assert sum(span.num_bytes for span in spans) == total
    assert plan_spans([]) == []


# Wrong files.

def read_all(paths, size=0, **sizes):
    return documents(paths, plan_spans(paths, size), **sizes)


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("size, block", [(10**9, 7), (50, 16)])
def test_what_is_not_utf8_is_found_with_its_line(tmp_path, ending, size, block):
    content = b"\xef\xbb\xbfgood\n" + b"fine\n\n" * 30 + b"bad \xe4\nmore\n"
    [path] = write_files(tmp_path, [content], [ending])
    with pytest.raises(InputError) as error:
        read_all([path], size, block_bytes=block)
    with pytest.raises(InputError) as plain:
        list(text_files.read_lines(path))
    assert str(error.value) == str(plain.value)
    assert "line 62: byte 5 is not UTF-8" in str(error.value)


UTF_16 = "Text as some editors write it.\n"


@pytest.mark.parametrize("content, named", [
    (b"\xef\xbb\xbfab\xff", ", line 1: byte 6"),
    (UTF_16.encode("utf-16-le") * 3, ", line 1: it holds NUL"),
    (b"text\n" * 3 + b"\0" * 100, ", line 4: it holds NUL"),
    (UTF_16.encode("utf-16") * 3, ".*iconv")])
def test_other_bytes_than_text(tmp_path, content, named):
    with pytest.raises(InputError, match=f"a.txt{named}"):
        read_all([written(tmp_path, content, "a.txt")])


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("block", [1, 33])
def test_long_lines(tmp_path, ending, block):
    sizes = dict(max_line_bytes=64, block_bytes=block)
    good = b"a" * 64 + b"\n\n" + b"b" * 64
    [path] = write_files(tmp_path, [good], [ending])
    assert len(read_all([path], **sizes)) == 2
    for bad, at in ((good + b"b", 66), (b"\n" + good[:64] + b"a" + good[64:], 1)):
        [path] = write_files(tmp_path, [bad], [ending])
        for size in (1, 30, 10**9):
            with pytest.raises(InputError, match=f"byte {at}: a line is longer than .*split"):
                read_all([path], size, **sizes)


@pytest.mark.parametrize("ending", [e for e in COMPRESS if e])
@pytest.mark.parametrize("damage", ["cut", "plain"])
def test_damaged_files(tmp_path, ending, damage):
    rng = random.Random(1)
    text = b"".join(b"%d\n" % rng.randrange(10**9) for _ in range(9_999))
    content = COMPRESS[ending](text)[:-60] if damage == "cut" else b"plain text " * 9
    path = written(tmp_path, content, f"a.txt{ending}")
    message = re.escape(f"a.txt{ending}: ")
    for read in (lambda: read_all([path]), lambda: list(text_files.read_lines(path)),
                 lambda: list(readers.read_documents([path], readers.Layout(), {}))):
        with pytest.raises(InputError, match=message):
            read()
