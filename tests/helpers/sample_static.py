"""Small folders of static embeddings in every layout that is read."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sample_encoders import WORDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

_TOKENS = ["[UNK]", "[CLS]", "[SEP]", *WORDS, "##s", "Oslo", *"bdfgk", *(f"##{letter}" for letter in "aeioulmnrst")]
VOCABULARY = {token: number for number, token in enumerate(dict.fromkeys(_TOKENS))}
TABLE = np.random.default_rng(3).standard_normal((len(VOCABULARY), 16)).astype(np.float32)


def make_tokenizer(*, special_tokens: bool = False) -> Tokenizer:
    """A cased WordPiece tokenizer; special_tokens: with [CLS] and [SEP], padding and truncation."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special_tokens:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        tokenizer.enable_padding(length=40)
        tokenizer.enable_truncation(3)
    return tokenizer


def make_model2vec(folder: Path, table: np.ndarray = TABLE, **arrays: np.ndarray) -> Path:
    """The layout of model2vec; `arrays`: mapping and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"embeddings": np.ascontiguousarray(table), **arrays}, folder / "model.safetensors")
    make_tokenizer(special_tokens=True).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "architectures": ["StaticModel"]}))
    return folder


def make_static_embedding(folder: Path, extra: str | None = None) -> Path:
    """The layout of sentence-transformers; `extra`: type of a third module."""
    inner = folder / "0_StaticEmbedding"
    inner.mkdir(parents=True)
    (folder / "1_Normalize").mkdir()
    kinds = ["sentence_transformers.models.StaticEmbedding", "sentence_transformers.models.Normalize"]
    paths = ["0_StaticEmbedding", "1_Normalize", "2_Extra"]
    modules = [
        {"idx": number, "name": str(number), "path": paths[number], "type": kind}
        for number, kind in enumerate([*kinds, *([extra] if extra else [])])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    save_file({"embedding.weight": TABLE}, inner / "model.safetensors")
    make_tokenizer().save(str(inner / "tokenizer.json"))
    return folder


def make_wordllama(folder: Path) -> None:
    """A package of the names and files of wordllama's wheel, whose import fails."""
    package = folder / "wordllama"
    for name in ("weights", "tokenizers"):
        (package / name).mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    save_file({"embedding.weight": TABLE}, package / "weights" / "l2_supercat_256.safetensors")
    make_tokenizer(special_tokens=True).save(str(package / "tokenizers" / "l2_supercat_tokenizer_config.json"))
