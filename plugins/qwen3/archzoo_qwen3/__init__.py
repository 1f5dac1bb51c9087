"""Qwen2 and Qwen3 architectures for archzoo."""
