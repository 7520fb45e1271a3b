"""Hugging Face and sentence-transformers encoders, with optional overrides of pooling, prompts and length."""

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from bidr.errors import MissingExtraError, ModelError
from bidr.models.encoder_source import DOCUMENT_PROMPTS, locate_encoder, select_prompts
from bidr.models.kernels.varlen import can_pack, compile_layers, encode_packed
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import TokenArray, Tokens

Pooling = Literal["mean", "cls", "max", "lasttoken"]

DEFAULT_MAX_LENGTH = 512
PAD_TO = 8
GROUP_ROWS = 256


class TransformerEncoder(Encoder):
    """A SentenceTransformer that reads ragged batches."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = _get_fast_tokenizer(model)
        self.pad_id = int(model.tokenizer.pad_token_id or 0)
        self.prompts = select_prompts(model.prompts or {})
        limit = model.max_seq_length or DEFAULT_MAX_LENGTH
        self.max_length = int(min(limit, 1_000_000))
        self.dim = int(_get_dimension(model))
        self.normalized = type(model[-1]).__name__ == "Normalize"
        self._packable = can_pack(model)

    @classmethod
    def open(
        cls,
        name: str,
        *,
        pooling: Pooling | None = None,
        projection: int | None = None,
        normalise: bool | None = None,
        dropout: float | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        seed: int = 0,
    ) -> "TransformerEncoder":
        """Load a folder or a hub id; arguments that are None keep the model's own settings."""
        folder = name if Path(name).exists() else str(locate_encoder(name).folder)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError("a transformer encoder", "sentence-transformers", "transformers") from error
        try:
            model = SentenceTransformer(folder, device="cpu", trust_remote_code=False)
            if type(model[0]).__name__ == "StaticEmbedding":
                raise ModelError(
                    f"{name!r} holds static embeddings, which were not in the Hugging Face cache and now are; "
                    "run the same command again"
                )
            model = _apply_overrides(model.float(), pooling, projection, normalise, seed)
            if dropout is not None:
                _set_dropout(model, dropout)
            prompts = {"query": query_prompt, **dict.fromkeys(DOCUMENT_PROMPTS, document_prompt)}
            model.prompts.update({role: prompt for role, prompt in prompts.items() if prompt is not None})
            encoder = cls(model)
            encoder._check_output()
            return encoder
        except ModelError:
            raise
        except Exception as error:  # the loaders raise many kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"cannot load the encoder {name!r}: {reason}; give a folder or an id in the "
                "Hugging Face or sentence-transformers layout, or 'built-in'"
            ) from error

    def _check_output(self) -> None:
        """Encode one token: some faults of a configuration appear only there, and would be found by a search."""
        token = Tokens(np.array([self.pad_id], dtype=np.int32), np.array([0, 1], dtype=np.int64))
        with torch.inference_mode():
            shape = tuple(self._forward(token).shape)
        if shape != (1, self.dim):
            raise ValueError(f"a text gives an array of shape {shape}, expected {(1, self.dim)}")

    def forward(self, tokens: Tokens) -> Tensor:
        """Encode; without padding on a GPU if the model supports it."""
        if not (self._packable and self.device.type == "cuda"):
            return self._forward_in_groups(tokens)
        offsets, longest = tokens.offsets, int(np.diff(tokens.offsets).max(initial=1))
        ids, starts = (torch.from_numpy(array).to(self.device, non_blocking=True) for array in (tokens.ids, offsets))
        return encode_packed(self.model, ids, starts, longest, training=self.training)

    def expect_steps(self, steps: int) -> None:
        if self._packable and self.device.type == "cuda":
            compile_layers(self.model, steps)

    def _forward_in_groups(self, tokens: Tokens) -> Tensor:
        """Encode in groups of similar length, to reduce padding."""
        order = np.argsort(np.diff(tokens.offsets), kind="stable")
        source = TokenArray(tokens)
        groups = np.array_split(order, max(1, len(order) // GROUP_ROWS))
        vectors = torch.cat([self._forward(source.get_batch(rows)) for rows in groups])
        return vectors[torch.from_numpy(np.argsort(order)).to(vectors.device)]

    def _forward(self, tokens: Tokens) -> Tensor:
        ids, mask = pad(tokens, self.pad_id, self.device)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=ids.is_cuda):
            out = self.model({"input_ids": ids, "attention_mask": mask})
        return cast(Tensor, out["sentence_embedding"].float())

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(str(folder), create_model_card=False)


def pad(tokens: Tokens, pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad ragged rows to a rectangle; return ids and attention mask."""
    lengths = np.diff(tokens.offsets)
    width = max(int(lengths.max(initial=1)), 1)
    width = -(-width // PAD_TO) * PAD_TO
    mask = np.arange(width) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = tokens.ids
    ids_tensor, mask_tensor = torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))
    if device.type == "cuda":
        ids_tensor, mask_tensor = ids_tensor.pin_memory(), mask_tensor.pin_memory()
    return ids_tensor.to(device, non_blocking=True), mask_tensor.to(device, non_blocking=True)


def _apply_overrides(model: Any, pooling: str | None, projection: int | None, normalise: bool | None, seed: int) -> Any:
    """Express overrides as modules, so that the saved folder contains them."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    modules = list(model)
    ends_normalised = type(modules[-1]).__name__ == "Normalize"
    if ends_normalised:
        modules.pop()
    if pooling:
        place = next((i for i, m in enumerate(modules) if type(m).__name__ == "Pooling"), None)
        if place is None:
            raise ModelError(f"pooling: given {pooling!r}, but the model has no pooling module; leave it out")
        modules[place] = PoolingModule(model[0].get_embedding_dimension(), pooling_mode=pooling)
    if projection:
        torch.manual_seed(seed)
        width = _get_dimension(SentenceTransformer(modules=modules, device="cpu"))
        modules.append(Dense(width, projection, bias=False, activation_function=torch.nn.Identity()))
    if ends_normalised if normalise is None else normalise:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device="cpu", prompts=model.prompts)


def _set_dropout(model: Any, share: float) -> None:
    """Set the dropout of modules and of the saved configuration."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share
    config = model[0].model.config
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, share)


def _get_dimension(model: Any) -> int:
    named = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return int(named())


def _get_fast_tokenizer(model: Any) -> Any:
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"the tokenizer {type(model.tokenizer).__name__} has no fast version; "
            "save the model with a tokenizer.json first"
        )
    return backend
