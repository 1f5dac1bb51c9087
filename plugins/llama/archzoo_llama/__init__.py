"""Llama-family architectures for archzoo."""
