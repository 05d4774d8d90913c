"""Chat encodings. A rank's start copies the checkpoint's own over deepseek_v4_encoding.py."""
