"""Text to tokens and back: chat templates, vocabularies, tokenizers, bytes of tokens, stop strings; no torch."""
