"""Small encoders for tests: a bag of word pieces, and a BERT with random weights and its own tokenizer."""

import json
from pathlib import Path

import numpy as np
import torch

from bidr.models.bag_of_tokens import BagOfTokensEncoder
from bidr.tokenization.token_store import TokenStore
from bidr.tokenization.tokenizer import tokenize
from bidr.tokenization.wordpieces import train_wordpieces

WORDS = ["the", "night", "watch", "was", "painted", "by", "rembrandt", "a", "girl", "with", "pearl", "earring"]
WORDS += ["sorting", "numbers", "quickly", "in", "oysters"]
TEXTS = [
    "The night watch was painted by Rembrandt",
    "pearl",
    "A girl with a pearl earring, a girl with a pearl earring, sorting pearls in oysters by night",
    "sorting numbers quickly",
    "unheard words only",
    "",
]


def bag(folder: Path, dim: int = 8, seed: int = 0) -> tuple[BagOfTokensEncoder, TokenStore]:
    tokenizer = train_wordpieces(TEXTS, 200)
    store = tokenize(TEXTS, tokenizer, folder, max_length=64, source="made")
    return BagOfTokensEncoder.create(tokenizer, store, dim, seed), store


def bert(folder: Path, *, max_length: int = 32, truncation: int | None = None, dim: int = 32) -> Path:
    """A plain Hugging Face folder; `truncation` goes into its tokenizer.json."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS, ",", "##s", "query", "document", ":"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, mask_token="[MASK]", model_max_length=max_length, **names
    )
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * dim,
        max_position_embeddings=max_length,
        # the usual 0.02 leaves texts all but equal after two layers
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    if truncation:
        path = folder / "tokenizer.json"
        about = json.loads(path.read_text())
        about["truncation"] = {"direction": "Right", "max_length": truncation, "strategy": "LongestFirst", "stride": 0}
        about["padding"] = {
            "strategy": {"Fixed": 20},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        }
        path.write_text(json.dumps(about))
    return folder


def sentence_bert(folder: Path, *, prompts: dict[str, str] | None = None, pooling: str = "cls", dim: int = 32) -> Path:
    """The same BERT in the layout of sentence-transformers: pooling, normalisation and prompts are said in it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    inner = Transformer(str(bert(folder.with_name(folder.name + "-plain"), dim=dim)))
    modules = [inner, Pooling(dim, pooling_mode=pooling), Normalize()]
    SentenceTransformer(modules=modules, prompts=prompts, device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, atol=2e-5))
