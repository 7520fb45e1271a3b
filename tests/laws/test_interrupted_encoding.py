"""Builds of texts that are cut off while they encode or learn: repeated, they end in the same bytes."""

from contextlib import suppress
from pathlib import Path

import pytest
from sample_encoder_index import make_dataset, make_encoder, shorten_learning
from write_killer import Killed

import bidr
from bidr.index.storage.manifest import open_generation
from bidr.models import corpus_encoding
from bidr.pipeline import encoder_build
from bidr.quantization.opq_config import PlainCodes


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder") / "static")


@pytest.fixture
def blocks(monkeypatch):
    """Few rows between checkpoints; the list of those that were encoded."""
    encoded, real = [], corpus_encoding.encode_rows

    def encode_rows(encoder, source, rows=None, *args, **options):
        encoded.append(0 if rows is None else int(rows[0]))
        return real(encoder, source, rows, *args, **options)

    monkeypatch.setattr(corpus_encoding, "encode_rows", encode_rows)
    monkeypatch.setitem(corpus_encoding.ROWS_PER_BLOCK, "cpu", 64)
    return encoded


def read_files(folder: Path) -> dict[str, bytes]:
    generation, _ = open_generation(folder)
    return {path.name: path.read_bytes() for path in sorted(generation.iterdir())}


def build(folder: Path, encoder: Path, **options: object) -> Path:
    plain = PlainCodes(bytes_per_doc=4)
    return bidr.build(make_dataset(), encoder=encoder, out=folder, plain=plain, lexical=True, **options)


@pytest.mark.parametrize("learn", [False, True])
def test_a_build_killed_at_any_block_ends_in_the_same_bytes(encoder, blocks, monkeypatch, tmp_path, learn):
    shorten_learning(monkeypatch)
    expected = read_files(build(tmp_path / "whole", encoder, learn=learn))
    steps, real = len(blocks), corpus_encoding.encode_rows
    for last in range(1, steps, 2 if learn else 1):
        del blocks[:]

        def encode_rows(*args, last=last, **options):
            if len(blocks) == last:
                raise Killed
            return real(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(corpus_encoding, "encode_rows", encode_rows)
            with suppress(Killed):
                build(tmp_path / f"cut-{last}", encoder, learn=learn)
        before = len(blocks)
        assert read_files(build(tmp_path / f"cut-{last}", encoder, learn=learn)) == expected
        assert len(blocks) - before < steps  # it went on where it was


def test_a_build_killed_before_it_writes_the_index_encodes_nothing_again(encoder, blocks, monkeypatch, tmp_path):
    expected = read_files(build(tmp_path / "whole", encoder))
    with monkeypatch.context() as patch:
        patch.setattr(encoder_build, "fit_and_write", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            build(tmp_path / "cut", encoder)
    del blocks[:]
    assert read_files(build(tmp_path / "cut", encoder)) == expected
    assert not blocks


def test_another_prompt_or_encoder_begins_anew(encoder, blocks, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(encoder_build, "fit_and_write", lambda *args: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            build(tmp_path / "index", encoder)
    other = {"document_prompt": "oysters "}
    expected = read_files(build(tmp_path / "whole", encoder, **other))
    assert read_files(build(tmp_path / "index", encoder, **other)) == expected
