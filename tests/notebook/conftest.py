"""The browser of the other tests."""

from tests.browser.conftest import browser

__all__ = ["browser"]
