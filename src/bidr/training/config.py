"""Training settings. Each field is a key of the TOML file and a flag of `bidr train`."""

from dataclasses import dataclass, field
from typing import Literal

from bidr.data.dataset import Titles
from bidr.errors import ConfigError
from bidr.models.static_embeddings import is_static_model
from bidr.training.codes_only.config import CodesOnlyConfig
from bidr.training.config_validation import (
    EncoderKind,
    check_at_least,
    check_bounds,
    check_choices,
    refuse_unused_encoder_settings,
)

BUILT_IN = "built-in"
VectorsName = Literal["warmup", "conventional", "random-walk", "snowball", "averaged", "unified"]
CodesName = Literal["opq", "contrastive", "distilled"]
Negatives = Literal["in-batch", "bm25", "mined"]
SamplerName = Literal["random-walk", "snowball", "mined", "mined-alone", "in-batch"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Encoder settings."""

    backbone: str = BUILT_IN
    """'built-in' (sum of word-piece embeddings, no download); 'wordllama' or the folder or cached id of a model2vec or
    StaticEmbedding model: the built-in encoder, started from pretrained embeddings; or the folder or id of a Hugging
    Face or sentence-transformers model."""
    dim: int = 256
    """Dimensions of the built-in encoder. Pretrained embeddings have their own."""
    vocabulary: int = 30_000
    """Vocabulary size of the built-in encoder, in word pieces."""
    tokenizer: Literal["corpus", "pretrained"] = "corpus"
    """Of pretrained embeddings: 'corpus': word pieces learned from the corpus, each started from the sum of its
    pretrained tokens' embeddings; 'pretrained': the tokens themselves."""
    projection: int | None = None
    """Add a trainable linear projection to this many dimensions (the paper: 768 to 64)."""
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = None
    """Pooling of the token vectors. None: the model's own."""
    normalise: bool | None = None
    """L2-normalize the vectors. None: the model's own setting."""
    scale: float | None = None
    """Factor of the scores in the loss (inverse temperature). None: 20 for unit vectors, else 1."""
    dropout: float | None = None
    """Dropout rate of a transformer during training. None: the model's own. 0 makes a step about a quarter faster; with
    few train queries the vectors get slightly worse."""
    query_prompt: str | None = None
    """Prefix of each query. None: the model's own."""
    document_prompt: str | None = None
    """Prefix of each document. None: the model's own."""


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Text settings."""

    titles: Titles = "prepend"
    """'prepend': encode title and text; 'ignore': encode the text alone."""
    query_length: int = 64
    """Maximum tokens of a query."""
    document_length: int = 256
    """Maximum tokens of a document."""


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Stage 1, warm-up: train one encoder without codes."""

    epochs: int = 3
    """Epochs over the train queries."""
    negatives: Literal["in-batch", "bm25"] | None = None
    """'in-batch': the positives of the other queries; 'bm25': also one BM25 negative per query. None: 'bm25' for
    transformers, as in the paper, and 'in-batch' for the built-in encoder, which BM25 negatives made worse."""


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """Stage 2, sparse: train encoder and codebooks together."""

    epochs: int = 2
    """Epochs over the train queries. 0: the warm-up's encoder with OPQ codes of its vectors."""
    loss: Literal["quantized", "joint", "dpq"] = "joint"
    """'quantized': contrastive loss on the codes (equation 3 of the paper); 'joint': the sum of that loss on the codes
    and on the unquantized vectors; 'dpq': contrastive loss on the unquantized vectors plus reconstruction error."""
    negatives: Negatives | None = None
    """As in the warm-up; 'mined': also one negative from the documents nearest to the query, which the paper advises
    against in this stage."""
    assignment: Literal["nearest", "uniform"] = "nearest"
    """Codeword assignment during training: 'nearest', or 'uniform': each codeword equally often within a batch
    (RepCONC)."""
    crops: float = 0.0
    """Pseudo-queries per train query: a random document is the positive of a crop of its own text, as long as a query.
    Trains on documents without labels."""
    reconstruction: float | None = None
    """Weight of the squared quantization error. None: 1 with the loss 'dpq', else 0."""
    temperature: float = 0.01
    """Softmax temperature of the straight-through codeword assignment, relative to the mean squared length of the
    vectors."""
    codebook_rate: float | None = None
    """Learning rate of the codebooks as a multiple of the encoder's. None: 20 for transformers, 1 for the built-in
    encoder."""
    rate: float | None = None
    """Learning rate as a multiple of the warm-up's. None: 1 for transformers, 0.1 for the built-in encoder, whose
    warm-up starts from random vectors."""


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """Stage 3, dense: train the encoder of the vectors on the candidates of the codes."""

    epochs: int = 2
    """Epochs over the train queries."""
    sampler: SamplerName = "random-walk"
    """'random-walk', 'snowball': batches are neighborhoods of the proximity graph; 'mined': random batches with one
    candidate per query as hard negative; 'mined-alone': the hard negative without in-batch negatives; 'in-batch':
    random batches."""
    start: Literal["backbone", "warmup", "sparse", "conventional"] = "warmup"
    """Encoder from which the stage starts."""
    rate: float | None = None
    """Learning rate as a multiple of the warm-up's. None: 1 for transformers, 0.1 for the built-in encoder, whose
    warm-up starts from random vectors."""
    depth: int = 200
    """Candidates per query in the proximity graph, from which negatives are drawn."""
    hops: int | None = None
    """Follow only the edges to this many best candidates of a query. None: all `depth` edges from 400,000 documents on,
    proportionally fewer below, because the top 200 of a small corpus are not close."""
    walk: Literal["paper"] | None = None
    """'paper': batches are collected as the paper describes, for a corpus of any size: each hop goes through the drawn
    negative, out of all `depth` candidates, and a dead end begins anew. None: hops go through the best `hops`
    candidates, and a dead end is left through another candidate."""
    batch_size: int | None = None
    """Queries per batch in this stage. None: `batch_size`."""
    prefixes: tuple[int, ...] = ()
    """Matryoshka: also apply the loss to the first so many dimensions, for each number given."""


@dataclass(frozen=True, kw_only=True)
class UnifyConfig:
    """Stage 4, unification: train one query encoder for both codes and vectors."""

    epochs: int = 1
    """Epochs over the train queries. 0: keep two query encoders."""
    pool: int = 100_000
    """Documents whose codes are negatives of the sparse loss (at most the corpus). 0: the whole corpus of any size,
    read in blocks; only its codes are in memory."""
    own: int = 64
    """Candidates of the query sampled per step as negatives of the dense loss."""
    others: int = 4_096
    """Random documents per step as further negatives of the dense loss."""
    dense_weight: float = 1.0
    """Weight of the dense loss; the sparse loss has weight 1."""
    rate: float | None = None
    """Learning rate as a multiple of the warm-up's. None: as in the sparse stage."""
    codewords: Literal["fixed", "learned"] = "fixed"
    """'fixed'; 'learned': also train the codewords, with the documents' codes fixed (JPQ)."""
    negatives: Literal["pool", "top"] = "pool"
    """Negatives of the sparse loss: 'pool', or 'top': the documents that the codes rank highest at the current step."""
    top: int = 200
    """Number of 'top' negatives."""
    lists: int = 0
    """Inverted lists whose centroids are trained with the query encoder, for the engine 'lists'. 0: none."""


@dataclass(frozen=True, kw_only=True)
class ConventionalConfig:
    """The conventional method: one encoder with hard negatives, then codes of its vectors."""

    negatives: Literal["in-batch", "bm25", "mined", "mined-alone", "refreshed", "refreshed-alone"] = "mined"
    """Hard negative per query: 'bm25'; 'mined': once, with the warm-up's encoder; 'refreshed': again every `refresh`
    epochs, with the current encoder. With '-alone': no in-batch negatives. 'in-batch': in-batch negatives only."""
    refresh: int = 1
    """Epochs between minings of 'refreshed' negatives."""
    epochs: int | None = None
    """Epochs after the warm-up. None: as many as give the number of steps of the method's stages; 0: the encoder is the
    warm-up's."""
    codes: Literal["pq", "opq", "learned", "jpq", "distilled", "tuned", "taught"] = "opq"
    """'pq', 'opq': codes fitted to the vectors; 'learned': the sparse stage from this encoder on; 'jpq': OPQ codes,
    with codewords and query encoder trained afterwards; 'distilled': additive codes distilled from the ranking by
    vectors (see frozen); 'tuned': 'distilled', with codewords and query encoder trained afterwards; 'taught':
    'distilled', with a second encoder trained for the codes."""


@dataclass(frozen=True, kw_only=True)
class NegativesConfig:
    """Mined hard negatives."""

    each: int = 1
    """Mined negatives per query in a random batch. Batches of the proximity graph have one."""
    margin: float | None = None
    """Discard mined documents that score above (the query's positive - margin), which are likely unlabeled positives.
    None: keep all."""
    judge: Literal["encoder", "teacher"] = "encoder"
    """Scores for the margin: of the 'encoder' that mines, or of the cross-encoder in distil.teacher."""
    live_margin: float | None = None
    """At each step, mask in-batch negatives that score above (the positive - live_margin); -0.1 masks only those well
    above it. None: mask none."""


@dataclass(frozen=True, kw_only=True)
class DistilConfig:
    """Distillation of a teacher's scores into the codes, in the sparse stage."""

    source: Literal["none", "dense", "teacher"] = "none"
    """'dense': the unquantized scores of the encoder that the stage starts from; 'teacher': a cross-encoder's
    scores."""
    weight: float = 1.0
    """Weight of the KL divergence between teacher and codes."""
    teacher: str | None = None
    """Folder or id of a cross-encoder (extra 'transformers'), or a file of its scores: query id, document id and score,
    separated by tabs."""
    depth: int = 20
    """Mined documents per query that the teacher scores, beside the positives."""
    scale: float = 1.0
    """Factor of the teacher's scores before the softmax."""


@dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """The choice on dev (method 'auto'). Vectors of the warm-up with OPQ codes, and BM25 alone, always take part."""

    vectors: tuple[VectorsName, ...] = ("warmup", "conventional", "random-walk", "unified", "averaged")
    """Vectors that may rank: of the stages `warmup`, `conventional` (STAR) and `dense`; 'averaged': of the mean of
    these encoders' weights; 'unified': of `dense` with the query encoder of `unify`."""
    codes: tuple[CodesName, ...] = ("opq", "contrastive", "distilled")
    """Codes that may find candidates: 'opq' of the ranking vectors, 'contrastive' (stage `sparse`), 'distilled'
    (additive, of the best vectors so far)."""
    lexical: tuple[int, ...] = (50, 100, 200)
    """Numbers of BM25 candidates to try for fusion. Empty: no fusion."""
    small_dev: int = 300
    """With fewer dev queries, of the contenders within one standard error of the best the one is chosen whose parts
    lead on other datasets: fusion, distilled codes, averaged vectors."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run."""

    method: Literal["auto", "bidr", "conventional"] = "auto"
    """'auto': train the contenders of `choice` and keep the best on dev; 'bidr': learn the codes first, then the
    vectors on the codes' candidates; 'conventional': train one encoder for as many steps, then fit codes to its
    vectors."""
    bytes_per_doc: int = 16
    """Code size in bytes per document, kept in RAM."""
    codewords: Literal[256, 16] = 256
    """Codewords per codebook: 256 (8 bits each), or 16 (4 bits each, twice as many codebooks, for fast scan)."""
    batch_size: int = 512
    """Queries per batch."""
    learning_rate: float | None = None
    """Learning rate of the warm-up. None: 0.02 for the built-in encoder, 5e-5 for transformers."""
    weight_decay: float | None = None
    """Weight decay. None: 0 for the built-in encoder, 0.01 for transformers."""
    warmup_share: float = 0.1
    """Fraction of a stage's steps in which the learning rate rises linearly."""
    clip: float = 1.0
    """Maximum norm of the gradient."""
    candidates: int = 200
    """N: candidates per query, in dev measurements and as the model's default in search."""
    dev_queries: int = 1_000
    """Maximum number of dev queries, drawn at random. Queries that other splits have too are left out."""
    min_dev_queries: int = 20
    """Where dev has fewer queries, train queries are set aside to choose on too: at most a tenth of them, or a quarter
    where there is no dev split. 0: none beside the dev split, or 5 % of train without one."""
    dev_documents: int = 200_000
    """Dev is measured on the whole corpus up to this size, else on a random subset that holds all dev positives."""
    seed: int = 0
    """Random seed. The same seed gives the same model on the same machine."""
    device: str = "auto"
    """'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints within an epoch. One is also written at the end of each epoch and on Ctrl-C."""
    tokens_at_once: int | None = None
    """Maximum number of tokens, padding included, in one forward pass of a process. Larger batches are encoded in parts
    with gradient caching: the same gradient, less memory, a second forward pass. None: no limit."""
    logs: bool | None = None
    """Write TensorBoard files beside each stage's log.jsonl. None: if TensorBoard is installed."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    text: TextConfig = field(default_factory=TextConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    sparse: SparseConfig = field(default_factory=SparseConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)
    unify: UnifyConfig = field(default_factory=UnifyConfig)
    conventional: ConventionalConfig = field(default_factory=ConventionalConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    frozen: CodesOnlyConfig = field(default_factory=CodesOnlyConfig)
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)

    def __post_init__(self) -> None:
        check_choices(self)
        check_bounds(self)
        refuse_unused_encoder_settings(self.encoder, self.encoder_kind)
        if self.method == "conventional" and self.conventional.codes in ("jpq", "tuned"):
            check_at_least(1, self.unify, "epochs", prefix="unify.")  # the steps in which codewords learn
            if self.conventional.codes == "tuned" and self.unify.lists:
                raise ConfigError(
                    f"unify.lists: given {self.unify.lists} with codes that are additive (conventional.codes 'tuned'), "
                    "expected 0; lists are only learned for 'jpq'"
                )
        if self.negatives.judge == "teacher" and self.negatives.margin is None:
            raise ConfigError("negatives.judge: given 'teacher' without negatives.margin, expected a margin too")
        if self.dense.walk == "paper" and self.dense.hops is not None:
            raise ConfigError(f"dense.hops: given {self.dense.hops} with dense.walk 'paper', expected none of the two")
        _check_choice(self.choice, self.method, self.unify.epochs)
        if any(prefix < 1 for prefix in self.dense.prefixes):
            raise ConfigError(f"dense.prefixes: given {self.dense.prefixes}, expected numbers of 1 or more")

    @property
    def books(self) -> int:
        """Number of codebooks."""
        return self.bytes_per_doc * (1 if self.codewords == 256 else 2)

    @property
    def needs_teacher(self) -> bool:
        """Whether a cross-encoder's scores are needed."""
        filters_by_teacher = self.negatives.judge == "teacher" and self.negatives.margin is not None
        return filters_by_teacher or self.distil.source == "teacher"

    @property
    def encoder_kind(self) -> EncoderKind:
        """Kind of the encoder: 'static' is the built-in one started from pretrained embeddings."""
        if self.encoder.backbone == BUILT_IN:
            return "built-in"
        return "static" if is_static_model(self.encoder.backbone) else "transformer"

    @property
    def dim(self) -> int | None:
        """Dimensions of the vectors, if known before the encoder is opened."""
        dims = {"built-in": self.encoder.dim, "static": None, "transformer": self.encoder.projection}
        return dims[self.encoder_kind]


def _check_choice(choice: ChoiceConfig, method: str, unify_epochs: int) -> None:
    if any(count < 1 for count in choice.lexical):
        raise ConfigError(f"choice.lexical: given {choice.lexical}, expected numbers of 1 or more; none: no fusion")
    if method == "auto" and "unified" in choice.vectors and "contrastive" not in choice.codes:
        raise ConfigError(
            "choice.vectors: given 'unified' without 'contrastive' in choice.codes, whose query encoder it shares; "
            "leave it out, or add 'contrastive'"
        )
