"""Reading a checkpoint directory: what the model is, where its tensors lie, what its tokenizer knows."""
