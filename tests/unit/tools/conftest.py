"""How many examples Hypothesis tries."""

from tests import examples

examples.choose()
