"""Parts of ``tools/image``: the trainer's image as one file, with or without Docker. Standard library only."""
