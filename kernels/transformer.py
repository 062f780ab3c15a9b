"""A small transformer and its optimiser, written out so that every value in between can be seen.

Causal attention from plain products and a softmax, layer norms, an MLP, a head, cross
entropy, AdamW: what a training step of a language model is made of, and nothing of which torch has
no deterministic form. Weights and data belong to a recipe and never to a run. The head does not
share the embedding's weights: a wrong bit of one gradient could vanish in the sum of the two.

Products and activations are in the recipe's dtype; master weights, their gradients and the
moments are float32, as in mixed-precision training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from nodeproof.kernels.draws import words

VERSION = 1  # of the recipes: a change of anything here that changes a bit needs another number
SEED = 20260  # not the run's: recorded answers need the same data for ever
See = Callable[[str, Any], Any]  # takes a name and a tensor, and returns the tensor to go on with

_RATE, _DECAY, _BETAS, _EPSILON = 1e-3, 0.1, (0.9, 0.95), 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained, and how far. All sizes in elements."""

    width: int
    layers: int
    heads: int
    length: int  # tokens of one sequence
    batch: int  # sequences
    vocabulary: int
    steps: int
    dtype: str

    def facts(self) -> dict[str, Any]:
        """What two answers have to share before they may be compared."""
        return {**asdict(self), "version": VERSION}


RECIPES = {
    "cuda": Recipe(
        width=1024,
        layers=8,
        heads=16,
        length=512,
        batch=8,
        vocabulary=4096,
        steps=6,
        dtype="bfloat16",
    ),
    # float32, since a processor without bfloat16 instructions takes it element by element.
    "cpu": Recipe(
        width=64,
        layers=2,
        heads=4,
        length=32,
        batch=2,
        vocabulary=64,
        steps=2,
        dtype="float32",
    ),
}


def shapes(recipe: Recipe) -> dict[str, tuple[int, int]]:
    """Name every weight, in the order in which the model uses them, with its rows and columns."""
    d = recipe.width
    found = {"embedding": (recipe.vocabulary, d), "position": (recipe.length, d)}
    for layer in range(recipe.layers):
        at = f"block{layer}"
        found |= {
            f"{at}.norm1": (2, d),
            f"{at}.attention.in": (3 * d, d),
            f"{at}.attention.out": (d, d),
            f"{at}.norm2": (2, d),
            f"{at}.mlp.up": (4 * d, d),
            f"{at}.mlp.down": (d, 4 * d),
        }
    return {**found, "norm": (2, d), "head": (recipe.vocabulary, d)}


def initial(recipe: Recipe) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield each weight with its name, one at a time: together they may be large.

    Uniform, and multiples of a power of two, so that float32 holds what was drawn. The first row
    of a norm is its gain, about one; the second its bias.
    """
    scale = 2.0 ** -(math.floor(math.log2(recipe.width) / 2) + 23)
    for name, (rows, columns) in shapes(recipe).items():
        drawn = (words(SEED, f"weight {name}", rows, columns) >> np.uint32(8)).astype(np.int32)
        values = (drawn - (1 << 23)).astype(np.float32) * np.float32(scale)
        if "norm" in name:
            values[0] += 1
        yield name, values


def tokens(recipe: Recipe) -> NDArray[np.int64]:
    """Return what is trained on: (batch, length + 1), each token to be told from those before."""
    drawn = words(SEED, "tokens", recipe.batch, recipe.length + 1)
    return (drawn % np.uint32(recipe.vocabulary)).astype(np.int64)


class Model:
    """The forward pass. Every value in it goes through the `see` that it is called with."""

    def __init__(self, recipe: Recipe, data: Any) -> None:
        self.recipe = recipe
        self._tokens = data[:, :-1].contiguous()
        # As a product, since the backward pass of a gather adds in an order of its own on a GPU.
        self._targets = functional.one_hot(data[:, 1:], recipe.vocabulary).to(torch.float32)
        hidden = torch.ones(recipe.length, recipe.length, dtype=torch.bool, device=data.device)
        self._hidden = hidden.triu(1)

    def loss(self, weights: Mapping[str, Any], see: See) -> Any:
        """Return the mean cross entropy, a float32 scalar. `weights` are float32."""
        held = {name: w.to(getattr(torch, self.recipe.dtype)) for name, w in weights.items()}
        embedded = functional.embedding(self._tokens, held["embedding"])
        x = see("embedding", embedded + held["position"])
        for layer in range(self.recipe.layers):
            x = self._block(x, f"block{layer}", held, see)
        x = see("norm", self._norm(x, held["norm"]))
        logits = see("logits", functional.linear(x, held["head"]))
        told = see("log_softmax", functional.log_softmax(logits.to(torch.float32), dim=-1))
        count = self.recipe.batch * self.recipe.length
        return see("loss", -(told * self._targets).sum() / count)

    def _block(self, x: Any, at: str, held: Mapping[str, Any], see: See) -> Any:
        linear = functional.linear
        recipe = self.recipe
        split = (recipe.batch, recipe.length, recipe.heads, recipe.width // recipe.heads)
        h = see(f"{at}.norm1", self._norm(x, held[f"{at}.norm1"]))
        three = see(f"{at}.attention.in", linear(h, held[f"{at}.attention.in"]))
        q, k, v = (part.reshape(split).transpose(1, 2) for part in three.chunk(3, dim=-1))
        scores = see(f"{at}.attention.scores", q @ k.transpose(2, 3))
        masked = (scores * split[3] ** -0.5).masked_fill(self._hidden, -math.inf)
        shares = see(f"{at}.attention.softmax", masked.softmax(dim=-1))
        mixed = see(f"{at}.attention.mixed", shares @ v).transpose(1, 2).reshape(x.shape)
        out = see(f"{at}.attention.out", linear(mixed, held[f"{at}.attention.out"]))
        x = see(f"{at}.attention", x + out)
        h = see(f"{at}.norm2", self._norm(x, held[f"{at}.norm2"]))
        up = see(f"{at}.mlp.up", linear(h, held[f"{at}.mlp.up"]))
        bent = see(f"{at}.mlp.gelu", functional.gelu(up, approximate="tanh"))
        down = see(f"{at}.mlp.down", linear(bent, held[f"{at}.mlp.down"]))
        return see(at, x + down)

    def _norm(self, x: Any, gain_and_bias: Any) -> Any:
        return functional.layer_norm(x, (self.recipe.width,), gain_and_bias[0], gain_and_bias[1])


class AdamW:
    """The optimiser of Loshchilov and Hutter (arXiv:1711.05101), one tensor after the other.

    Our own: torch's loads its compiler when first used, for more than a second of processor time.
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights
        self._first = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._second = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._steps = 0

    def step(self, gradients: Mapping[str, Any], see: See) -> None:
        """Change the weights in place; let moments and weights be seen as each is done."""
        self._steps += 1
        towards, across = (1 - beta**self._steps for beta in _BETAS)
        for name, weight in self._weights.items():
            gradient, first, second = gradients[name], self._first[name], self._second[name]
            first.mul_(_BETAS[0]).add_(gradient, alpha=1 - _BETAS[0])
            see(f"{name} first moment", first)
            second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            see(f"{name} second moment", second)
            spread = (second / across).sqrt_().add_(_EPSILON)
            weight.mul_(1 - _RATE * _DECAY).addcdiv_(first, spread, value=-_RATE / towards)
            see(name, weight)
