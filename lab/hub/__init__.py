"""The lab's model hub: small checkpoints with the real layout, served the way huggingface_hub asks for them."""
