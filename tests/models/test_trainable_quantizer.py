import numpy as np
import pytest
import torch

from bidr.models.trainable_quantizer import TrainableQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.pq_training import fit_pq


@pytest.fixture(params=[16, 256], scope="module")
def made(request):
    """Unit vectors and OPQ codebooks of them."""
    vectors = np.random.default_rng(0).standard_normal((1_500, 24)) * np.arange(1, 25) ** -0.5
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return fit_pq(vectors, 4, request.param, iterations=5), vectors


def apart(codebooks: Codebooks, vectors: np.ndarray) -> np.ndarray:
    """Rows whose nearest codeword is the nearest by more than rounding, in every book."""
    parts = codebooks.rotate(vectors).reshape(len(vectors), codebooks.books, -1)
    distances = np.sort(np.square(parts[:, :, None] - codebooks.centroids).sum(axis=3), axis=2)
    return (distances[:, :, 1] - distances[:, :, 0] > 1e-6).all(axis=1)


def test_the_trained_quantizer_says_what_the_codes_say(made):
    """Parity: what is learned here is what the index will hold."""
    codebooks, vectors = made
    kept = vectors[apart(codebooks, vectors)]
    assert len(kept) > 0.95 * len(vectors)
    said = TrainableQuantizer(codebooks)(torch.from_numpy(kept)).detach().numpy()
    assert np.allclose(said, codebooks.decode(codebooks.encode(kept)), atol=1e-6)


def test_scores_in_training_are_scores_of_the_index(made):
    codebooks, vectors = made
    vectors = vectors[apart(codebooks, vectors)]
    quantizer = TrainableQuantizer(codebooks)
    queries, documents = torch.from_numpy(vectors[:5]), torch.from_numpy(vectors[5:50])
    scores = (quantizer.rotate(queries) @ quantizer(documents).T).detach().numpy()
    assert np.allclose(scores, codebooks.compute_scores(vectors[:5], codebooks.encode(vectors[5:50])), atol=1e-5)


def test_the_codebooks_come_back_as_they_are(made):
    codebooks, _ = made
    quantizer = TrainableQuantizer(codebooks)
    for found, given in zip(quantizer.to_codebooks(), codebooks, strict=True):
        assert np.array_equal(found, given)
    held = quantizer.to_codebooks()
    with torch.no_grad():
        quantizer.centroids += 1
    assert np.array_equal(held.centroids, codebooks.centroids), "a copy must not follow the training"
    assert np.array_equal(quantizer.to_codebooks().centroids, codebooks.centroids + 1)


def test_the_chosen_codewords_gradient_is_the_sum_over_their_documents(made):
    """With the softmax so sharp that it is flat, only the direct path is left, which can be counted."""
    codebooks, vectors = made
    vectors = vectors[apart(codebooks, vectors)][:40]
    quantizer = TrainableQuantizer(codebooks, temperature=1e-9)
    weights = torch.from_numpy(np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32))
    (quantizer(torch.from_numpy(vectors)) * weights).sum().backward()
    expected = np.zeros_like(codebooks.centroids)
    for code, weight in zip(codebooks.encode(vectors), weights.numpy().reshape(40, 4, 6), strict=True):
        for book, word in enumerate(code):
            expected[book, word] += weight[book]
    assert np.allclose(quantizer.centroids.grad.numpy(), expected, atol=1e-5)


def test_the_input_moves_as_the_soft_choice_would(made):
    """Straight through: the gradient of the input is that of the softmax over codewords."""
    codebooks, vectors = made
    hard = torch.from_numpy(vectors[:20].copy()).requires_grad_()
    soft = torch.from_numpy(vectors[:20].copy()).requires_grad_()
    quantizer = TrainableQuantizer(codebooks, temperature=0.05)
    weights = torch.from_numpy(vectors[20:40])
    (quantizer(hard) * weights).sum().backward()
    parts = (soft @ torch.from_numpy(codebooks.rotation).T).view(20, 4, 1, 6)
    centroids = torch.from_numpy(codebooks.centroids)
    distances = (parts - centroids).square().sum(3)
    choice = torch.softmax(-distances / 0.05, dim=2)
    (torch.einsum("nmp,mpd->nmd", choice, centroids).flatten(1) * weights).sum().backward()
    assert soft.grad.abs().max() > 1e-3
    assert torch.allclose(hard.grad, soft.grad, atol=1e-4)


def test_only_the_codewords_learn(made):
    assert [name for name, _ in TrainableQuantizer(made[0]).named_parameters()] == ["centroids"]


def compute_gradient(codebooks: Codebooks, vectors: np.ndarray, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of a contrastive loss by the documents: straight through, and as if the choice were the identity."""
    quantizer = TrainableQuantizer(codebooks)
    targets, scale = torch.arange(len(queries)), 20 / float(np.square(vectors).sum(axis=1).mean())

    def get_gradient(documents: torch.Tensor, quantized: torch.Tensor) -> np.ndarray:
        scores = scale * quantizer.rotate(torch.from_numpy(queries)) @ quantized.T
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, targets), documents)
        return gradient.numpy()

    documents = torch.from_numpy(vectors).requires_grad_()
    identity = torch.from_numpy(vectors).requires_grad_()
    rotated = quantizer.rotate(identity)
    straight = quantizer(documents)
    return get_gradient(documents, straight), get_gradient(identity, rotated + (straight - rotated).detach())


def compute_cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("length", [0.1, 15.0, 27.0])
def test_the_gradient_keeps_its_direction_whatever_the_vectors_length(made, length):
    """Vectors of a CLS token have lengths of 15 to 27. By a fixed temperature the softmax would be hard there."""
    codebooks, vectors = made
    vectors, queries = vectors[:64], vectors[64:96]
    longer = Codebooks(codebooks.rotation, codebooks.centroids * np.float32(length))
    unit, unit_identity = compute_gradient(codebooks, vectors, queries)
    scaled, scaled_identity = compute_gradient(longer, vectors * np.float32(length), queries * np.float32(length))
    assert compute_cosine(unit, scaled) > 0.999
    assert compute_cosine(scaled, scaled_identity) == pytest.approx(compute_cosine(unit, unit_identity), abs=0.01)
