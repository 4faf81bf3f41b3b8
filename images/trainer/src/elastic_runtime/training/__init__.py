"""What the helpers in a rank have in common, whatever framework its script uses; their insides, not for scripts."""
