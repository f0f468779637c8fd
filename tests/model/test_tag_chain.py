"""Messages between neighbours against the recursions that pass along a sentence word by word."""

import pytest
import torch

from hf_roformer_lite.model.text_features import messages_of_neighbours


def _along(scores: torch.Tensor, transitions: torch.Tensor, join) -> torch.Tensor:
    """Forward and backward scores (Rabiner 1989, Proceedings of the IEEE 77.2) of one sentence, without `scores`."""
    forward, backward = [torch.zeros_like(scores[0])], [torch.zeros_like(scores[0])]
    for i in range(1, len(scores)):
        forward.append(join((scores[i - 1] + forward[-1])[:, None] + transitions, 0))
    for i in range(len(scores) - 2, -1, -1):
        backward.insert(0, join(transitions + (scores[i + 1] + backward[0])[None], 1))
    return torch.stack(forward) + torch.stack(backward)


@pytest.mark.parametrize("join", [torch.amax, torch.logsumexp])
def test_messages_are_those_of_the_recursions(join):
    torch.manual_seed(0)
    lengths, labels = [1, 17, 5, 2, 12], 4
    scores = [torch.randn(length, labels, dtype=torch.float64) for length in lengths]
    transitions = torch.randn(labels, labels, dtype=torch.float64)
    documents = torch.repeat_interleave(torch.tensor([3, 4, 7, 8, 9]), torch.tensor(lengths))
    found = messages_of_neighbours(torch.cat(scores), transitions, documents, join)
    expected = torch.cat([_along(sentence, transitions, join) for sentence in scores])
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1), atol=1e-12, rtol=0)
    assert found[0].tolist() == [0] * labels, "a word alone hears nothing"


def test_far_words_change_next_to_nothing():
    """In a long sentence the best tags are those of the exact recursion."""
    torch.manual_seed(0)
    scores, transitions = 2 * torch.randn(500, 5), torch.randn(5, 5)
    found = scores + messages_of_neighbours(scores, transitions, torch.zeros(500, dtype=torch.long))
    expected = scores + _along(scores, transitions, torch.amax)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_gradients_reach_scores_and_transitions():
    scores = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    transitions = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([0, 0, 0, 1, 1, 2])
    torch.autograd.gradcheck(lambda s, t: messages_of_neighbours(s, t, documents), (scores, transitions))
