"""Generation: the next token drawn from the logits, again and again."""
