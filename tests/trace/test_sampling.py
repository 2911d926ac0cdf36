"""What can be drawn by, at its very edges."""

from __future__ import annotations

import math

import pytest

from trivium.errors import InputError
from trivium.trace import Sampling

EDGES = [{"temperature": 0.0}, {"temperature": 1e-6}, {"temperature": 1e9}, {"top_p": 1e-9}, {"top_p": 1.0}, {"top_k": 0}]


@pytest.mark.parametrize("edge", [*EDGES, {"max_tokens": 1}], ids=str)
def test_up_to_its_edge_each_can_be_drawn_by(edge):
    Sampling(**edge)


BEYOND = [{"temperature": 9e-7}, {"temperature": -1.0}, {"temperature": math.inf}, {"temperature": math.nan}, {"top_p": 0.0}]


@pytest.mark.parametrize("beyond", [*BEYOND, {"top_p": 1.01}, {"top_k": -1}, {"max_tokens": 0}], ids=str)
def test_beyond_it_nobody_can_and_the_error_says_all_edges(beyond):
    with pytest.raises(InputError, match="nobody can draw by Sampling.*temperature 0 or from 1e-6, .*max_tokens from 1"):
        Sampling(**beyond)
