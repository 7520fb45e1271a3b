"""Training settings. Each field is a key of the TOML file and a flag of `bidr train`."""

from dataclasses import dataclass, field
from typing import Literal

from bidr.data.dataset import Titles
from bidr.errors import ConfigError
from bidr.training.codes_only.config import CodesOnlyConfig
from bidr.training.config_validation import check_at_least, check_bounds, check_choices, refuse_unused_encoder_settings

BUILT_IN = "built-in"
Negatives = Literal["in-batch", "bm25", "mined"]
SamplerName = Literal["random-walk", "snowball", "mined", "mined-alone", "in-batch"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Settings of the encoder."""

    backbone: str = BUILT_IN
    """'built-in' (a bag of word pieces, no download), or a folder or id in the Hugging Face or
    sentence-transformers layout."""
    dim: int = 256
    """Dimensions of the built-in encoder."""
    vocabulary: int = 30_000
    """Word pieces of the built-in encoder."""
    projection: int | None = None
    """Learn a linear projection to this many dimensions (the paper: 768 to 64)."""
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = None
    """How token vectors become one; None: as the model says."""
    normalise: bool | None = None
    """Vectors of length 1; None: as the model says."""
    scale: float | None = None
    """What scores are multiplied by in the loss; None: 20 for vectors of length 1, else 1."""
    dropout: float | None = None
    """Share of a transformer's activations that is dropped while it trains; None: as the model says. 0: steps are a
    quarter quicker, and where questions are few, vectors a little worse."""
    query_prompt: str | None = None
    """Text before each query; None: as the model says."""
    document_prompt: str | None = None
    """Text before each document; None: as the model says."""


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Settings of the text that is read."""

    titles: Titles = "prepend"
    """'prepend': title and text; 'ignore': only text."""
    query_length: int = 64
    """Maximum tokens of a query."""
    document_length: int = 256
    """Maximum tokens of a document."""


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """First stage: one encoder, without codes."""

    epochs: int = 3
    """Times that every train query is visited."""
    negatives: Literal["in-batch", "bm25"] | None = None
    """'in-batch': others' positives; 'bm25': one lexically similar document for each query besides. None: 'bm25' for
    transformers, as in the paper, 'in-batch' for the built-in encoder, which lexical negatives made worse."""


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """Second stage: codes, with the quantizer in the loop."""

    epochs: int = 2
    """Times that every train query is visited."""
    loss: Literal["quantized", "joint", "dpq"] = "joint"
    """'quantized': the paper's equation 3; 'joint': with the same loss on the unquantized vectors, as its code; 'dpq':
    that loss on the unquantized vectors, and the error of reconstruction."""
    negatives: Negatives | None = None
    """As in the warm-up; 'mined': one of the documents nearest to the query besides, which the paper advises against
    at this stage."""
    assignment: Literal["nearest", "uniform"] = "nearest"
    """How codewords are chosen while learning: the nearest, or such that a batch uses all equally (RepCONC)."""
    crops: float = 0.0
    """For each question of a batch so many random documents that ask for themselves: a passage as long as a question
    is told apart from the rest as questions are. Most documents of a corpus are nobody's labelled answer."""
    reconstruction: float | None = None
    """Weight of the squared distance between a vector and its codewords; None: 1 with the loss 'dpq', else 0."""
    temperature: float = 0.01
    """Of the softmax behind the straight-through choice of codewords, for vectors of length 1."""
    codebook_rate: float | None = None
    """Learning rate of the codewords as a multiple of the encoder's; None: 20 for transformers, 1 for built-in."""
    rate: float | None = None
    """Learning rate as a multiple of the warm-up's; None: 1 for transformers, 0.1 for the built-in encoder, whose
    warm-up begins from random vectors."""


@dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """Third stage: vectors, trained on the candidates of the codes."""

    epochs: int = 2
    """Times that every train query is visited."""
    sampler: SamplerName = "random-walk"
    """Batches on local patches of the proximity graph, or random ones with a candidate as negative ('mined-alone': and
    no other negative), or plain."""
    start: Literal["backbone", "warmup", "sparse"] = "warmup"
    """Which encoder the stage begins with."""
    rate: float | None = None
    """Learning rate as a multiple of the warm-up's; None: 1 for transformers, 0.1 for the built-in encoder, whose
    warm-up begins from random vectors."""
    depth: int = 200
    """Candidates of each query in the proximity graph: the negatives are drawn from them."""
    hops: int | None = None
    """Walk only over edges to a query's best so many candidates. None: over all where the corpus is large; below
    400,000 documents over fewer, in proportion, since the top 200 of a small corpus are not near."""
    batch_size: int | None = None
    """Queries in a batch of this stage; None: as in the others."""
    prefixes: tuple[int, ...] = ()
    """Dimensions at which a vector may be cut off and still rank (Matryoshka): the loss is taken at each of them."""


@dataclass(frozen=True, kw_only=True)
class UnifyConfig:
    """Last stage: one query encoder for codes and vectors."""

    epochs: int = 1
    """0: keep two query encoders."""
    pool: int = 100_000
    """Documents whose codes the sparse term compares with; the whole corpus when it has no more. 0: the whole corpus
    whatever its size, a block at a time, in memory for its codes alone."""
    own: int = 64
    """Of the query's candidates, how many the dense term compares with at a step."""
    others: int = 4_096
    """Random documents that the dense term compares with besides."""
    dense_weight: float = 1.0
    """Weight of the dense term; the sparse one has 1."""
    rate: float | None = None
    """Learning rate, as in the sparse stage."""
    codewords: Literal["fixed", "learned"] = "fixed"
    """'learned': the codewords learn with the query encoder, while every document keeps its codes (JPQ)."""
    negatives: Literal["pool", "top"] = "pool"
    """What the sparse term compares with: the pool, or the documents that the codes rank highest at this very step."""
    top: int = 200
    """How many of those."""
    lists: int = 0
    """Coarse lists of documents whose centroids learn with the query encoder, so that fewer must be visited; 0: none.
    An index with engine 'lists' takes them."""


@dataclass(frozen=True, kw_only=True)
class ConventionalConfig:
    """Conventional method: one encoder, and codes of its vectors."""

    negatives: Literal["in-batch", "bm25", "mined", "mined-alone", "refreshed", "refreshed-alone"] = "mined"
    """Besides others' positives (without them: '-alone') one document for each query: lexically similar, mined once
    from the warm-up's vectors, or mined again ('refreshed') by the encoder as it learns."""
    refresh: int = 1
    """Epochs after which 'refreshed' negatives are mined again."""
    codes: Literal["pq", "opq", "learned", "jpq", "distilled", "tuned", "taught"] = "opq"
    """Codes fitted to the vectors; or learned from there on in the sparse stage; or OPQ's, with codewords and query
    encoder learned for them; or sums of codewords that learn to rank as the vectors do ('distilled', see frozen),
    with codewords and query encoder learned for them afterwards ('tuned'), or with an encoder of their own that learns
    it too ('taught')."""


@dataclass(frozen=True, kw_only=True)
class NegativesConfig:
    """Settings of mined negatives."""

    each: int = 1
    """Mined documents for each query in a batch (random batches; local ones have one)."""
    margin: float | None = None
    """Drop mined documents that score above the query's positives minus this: likely unlabeled positives."""
    judge: Literal["encoder", "teacher"] = "encoder"
    """Whose scores: the encoder's that mined, or those of distil.teacher."""
    live_margin: float | None = None
    """Leave out, at each step, other documents of the batch that score above the positive minus this (-0.1: only those
    well above it)."""


@dataclass(frozen=True, kw_only=True)
class DistilConfig:
    """Distillation of a teacher's scores into the codes, in the sparse stage."""

    source: Literal["none", "dense", "teacher"] = "none"
    """'dense': the unquantized scores of the encoder that the stage begins with; 'teacher': a cross-encoder's."""
    weight: float = 1.0
    """Weight of the divergence between the two rankings."""
    teacher: str | None = None
    """Folder or id of a cross-encoder (needs the extra 'transformers'), or a file of its scores: lines of query id,
    document id and score, with tabs between."""
    depth: int = 20
    """Mined documents of each query that the teacher scores, besides its positives."""
    scale: float = 1.0
    """What the teacher's scores are multiplied by before the softmax."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a training run."""

    method: Literal["bidr", "conventional"] = "bidr"
    """'bidr': codes first, vectors on their candidates; 'conventional': one encoder for as many steps, and codes of its
    vectors."""
    bytes_per_doc: int = 16
    """Bytes of codes that a document takes in RAM."""
    codewords: Literal[256, 16] = 256
    """Codewords in a book: 256 (8 bits each) or 16 (4 bits each, twice the books)."""
    batch_size: int = 512
    """Queries in a batch."""
    learning_rate: float | None = None
    """None: 0.02 for the built-in encoder, 5e-5 for transformers."""
    weight_decay: float | None = None
    """None: 0 for the built-in encoder, 0.01 for transformers."""
    warmup_share: float = 0.1
    """Share of a stage's steps over which the learning rate rises."""
    clip: float = 1.0
    """Maximum norm of the gradient."""
    candidates: int = 200
    """N: how many candidates the codes bring up, when dev is measured and by default when searching."""
    dev_queries: int = 1_000
    """Maximum number of dev queries."""
    dev_documents: int = 200_000
    """Dev is measured on the whole corpus up to this size, else on a random part with all dev positives in it."""
    seed: int = 0
    """Of everything drawn at random: the same seed gives the same model on the same machine."""
    device: str = "auto"
    """'auto' takes a GPU if there is one; or 'cpu', 'cuda', 'cuda:1'."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints within an epoch; one is written at each epoch's end and when stopped."""
    tokens_at_once: int | None = None
    """Most tokens, with padding, that a process encodes at once in a step; a larger batch is encoded twice, in parts
    (gradient caching): the same gradient in less memory. None: the whole batch at once."""
    logs: bool | None = None
    """Files for TensorBoard beside each stage's log.jsonl; None: where the package is installed."""
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

    def __post_init__(self) -> None:
        check_choices(self)
        check_bounds(self)
        refuse_unused_encoder_settings(self.encoder, built_in=self.built_in)
        if self.method == "conventional" and self.conventional.codes in ("jpq", "tuned"):
            check_at_least(1, self.unify, "epochs", prefix="unify.")  # the steps in which codewords learn
            if self.conventional.codes == "tuned" and self.unify.lists:
                raise ConfigError(
                    f"unify.lists: given {self.unify.lists} with codes that are additive (conventional.codes 'tuned'), "
                    "expected 0; lists are only learned for 'jpq'"
                )
        if self.negatives.judge == "teacher" and self.negatives.margin is None:
            raise ConfigError("negatives.judge: given 'teacher' without negatives.margin, expected a margin too")
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
    def built_in(self) -> bool:
        return self.encoder.backbone == BUILT_IN

    @property
    def dim(self) -> int | None:
        """Dimensions of the vectors, if known before the encoder is opened."""
        return self.encoder.dim if self.built_in else self.encoder.projection
