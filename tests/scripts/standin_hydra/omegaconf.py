"""Stand-in for OmegaConf, see ``hydra.py``."""

DictConfig = dict
