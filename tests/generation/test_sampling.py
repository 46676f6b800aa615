"""One step of sampling: the right distribution, cut where it should be."""

import pytest
import torch

from megatron.generation.sampling import sample

PROBABILITIES = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])
LOGITS = PROBABILITIES.log()[None]


def frequencies(n: int = 2000, **settings) -> torch.Tensor:
    """Shares of each id over evenly spread uniform numbers."""
    uniform = (torch.arange(n) + 0.5) / n
    return torch.bincount(sample(LOGITS.expand(n, -1), uniform, **settings), minlength=5) / n


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 1.0}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"temperature": 1.0, "top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"temperature": 1.0, "top_k": 9}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"temperature": 1.0, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"temperature": 1.0, "top_p": 0.01}, [0, 1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.8}, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"temperature": 0.5}, (PROBABILITIES**2 / (PROBABILITIES**2).sum()).tolist()),
    ],
)
def test_distribution(settings, expected) -> None:
    torch.testing.assert_close(frequencies(**settings), torch.tensor(expected, dtype=torch.float32), atol=0.001, rtol=0)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval(uniform: float) -> None:
    """Never an id of probability zero, at either end."""
    logits = torch.tensor([[float("-inf"), 0.0, 1.0, float("-inf")]])
    assert sample(logits, torch.tensor([uniform], dtype=torch.float64), temperature=1.0).item() in (1, 2)
    assert sample(logits, torch.tensor([uniform], dtype=torch.float64), temperature=1.0, top_k=1).item() == 2
