"""Checkpoint files: Hugging Face directories, GGUF files, PEFT adapters, and the families' maps."""
