from types import SimpleNamespace

import pytest

from bidr.models.model_card import _format_front_matter


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("built-in", None),
        ("some/model", 'base_model: "some/model"'),
        ("wordllama", 'base_model: "dleemiller/word-llama-l2-supercat"'),
    ],
)
def test_a_card_names_the_model_it_started_from(backbone, expected):
    model = SimpleNamespace(training={"config": {"encoder": {"backbone": backbone}}})
    lines = [line for line in _format_front_matter(model).splitlines() if line.startswith("base_model")]  # type: ignore[arg-type]
    assert lines == ([expected] if expected else [])
