"""Importing this skips the module where the extra `alfworld` is not installed."""

import pytest
from extras import installed

if not installed("alfworld"):
    pytest.skip("the extra `alfworld` is not installed", allow_module_level=True)
