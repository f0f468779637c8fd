"""Like `test_pages.py`, for the other half of the pages of docs."""

import pytest
from documentation import PAGES_OF_DOCS, Block, params_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("block", params_of(PAGES_OF_DOCS[1::2]))
def test_block(block: Block, check_block):
    check_block(block)
