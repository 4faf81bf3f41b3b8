"""How a run ended, and what follows: the result, the failure, another try."""
