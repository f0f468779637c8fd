"""Every block of the pages of docs runs, and prints the output that the page shows.

`test_more_pages.py` has the other half of the pages, so that two processes share them."""

import pytest
from documentation import PAGES_OF_DOCS, Block, params_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", params_of(PAGES_OF_DOCS[::2]))
def test_block(block: Block, check_block):
    check_block(block)
