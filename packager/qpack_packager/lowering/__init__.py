"""Model families -> programs. The only room's corner that knows what a Qwen layer is made of."""
