"""mini-gpt: prepare text, train a GPT-2, generate from it, watch its attention. Importing this costs nothing."""

__version__ = "0.1.0"
