"""What the demo trains with."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_data import Run

from bidr.demo import run as demo
from bidr.training.config import BUILT_IN, TrainConfig


@pytest.fixture
def backbones(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backbone of each comparison that the demo starts."""
    names: list[str] = []

    def record(data: object, out: Path, config: TrainConfig, **_: object) -> list[object]:
        names.append(config.encoder.backbone)
        return []

    monkeypatch.setattr(demo, "compare", record)
    monkeypatch.setattr(demo, "reproduce", lambda *_, **__: [])
    monkeypatch.setattr(demo, "write_report", lambda out: None)
    corpus = SimpleNamespace(count=lambda: demo.DOCUMENTS)
    monkeypatch.setattr(demo, "load", lambda folder: SimpleNamespace(corpus=corpus))
    monkeypatch.setattr(demo, "write_corpus", lambda folder, documents: folder.mkdir(parents=True))
    return names


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_demo_starts_from_wordllama_where_it_is_installed(
    is_installed: bool, backbones: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "has_wordllama", lambda: is_installed)
    demo.run_demo(tmp_path / "demo")
    assert backbones == ["wordllama" if is_installed else BUILT_IN]


def test_a_resumed_demo_keeps_its_backbone(
    backbones: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for is_installed in (False, True):
        monkeypatch.setattr(demo, "has_wordllama", lambda installed=is_installed: installed)
        demo.run_demo(tmp_path / "demo")
    assert backbones == [BUILT_IN, BUILT_IN]
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "data.json").write_text(json.dumps({"documents": demo.DOCUMENTS}))
    demo.run_demo(tmp_path / "older")
    assert backbones[-1] == BUILT_IN, "a demo of a version without the choice"


@pytest.mark.slow
def test_the_demo_ends_with_the_papers_claims_on_its_own_stages(bidr: Run, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code, shown, err = bidr("demo", "--out", out, "--documents", 600)
    assert code == 0, err
    assert "warm-up + OPQ + BM25" in shown
    assert f"report: {out / 'paper' / 'report' / 'report.md'}" in shown
    assert {path.name.rpartition("+")[2] for path in (out / "paper" / "rows").iterdir()} == {
        f"{row}.json" for row in demo.PAPER_ROWS
    }
    assert not (out / "paper" / "work").exists(), "no stage is trained twice"
