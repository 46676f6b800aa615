"""DAPE-NeoX: pretraining decoder-only language models that stay good far beyond their training length."""
