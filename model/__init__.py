"""The PyTorch side: transformers made of LayerNorm blocks. Imports torch and nothing of ours."""
