"""Texts to predict with: what HTTP refuses is refused in lines, too."""

import pytest

from albert_tf.errors import InputError
from albert_tf.text import inputs


@pytest.mark.parametrize("line, message", [
    ('{"text": "a", "text": "b"}', "an object has the key 'text' twice; remove one"),
    ('{"text": "a", "id": {"x": 1, "x": 2}}', "an object has the key 'x' twice")])
def test_lines_that_are_not_clear(line, message, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    first, second = inputs.read(str(path))
    assert first.given == {"text": "a"}
    assert isinstance(second.given, InputError) and message in str(second.given)
    assert second.line == 2
