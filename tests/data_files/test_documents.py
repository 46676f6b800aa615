"""Documents within windows, against loops over tokens."""

import torch

from megatron.data.documents import document_numbers, loss_mask, restarted_positions

EOD = 9
TOKENS = torch.tensor([[1, 2, 9, 3, 9, 9, 4, 5], [9, 1, 1, 1, 1, 1, 1, 9], [1, 2, 3, 4, 5, 6, 7, 8]])


def test_by_hand():
    assert document_numbers(TOKENS, EOD).tolist() == [[0, 0, 0, 1, 1, 2, 3, 3], [0, 1, 1, 1, 1, 1, 1, 1], [0] * 8]
    assert restarted_positions(TOKENS, EOD).tolist() == [[0, 1, 2, 0, 1, 0, 0, 1], [0, 0, 1, 2, 3, 4, 5, 6], list(range(8))]
    assert loss_mask(TOKENS, EOD).tolist() == [[1, 1, 0, 1, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1, 1, 0], [1] * 8]


def test_against_a_loop():
    tokens = torch.randint(0, 12, (20, 50), generator=torch.Generator().manual_seed(0))
    numbers, positions = document_numbers(tokens, EOD), restarted_positions(tokens, EOD)
    assert numbers.dtype == positions.dtype == torch.int64
    for row in range(20):
        number = position = 0
        for column, token in enumerate(tokens[row].tolist()):
            assert (numbers[row, column], positions[row, column]) == (number, position)
            position += 1
            if token == EOD:
                number, position = number + 1, 0
