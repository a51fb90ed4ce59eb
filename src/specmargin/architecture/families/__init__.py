"""One module per family of models: a Hugging Face configuration in, layers out."""
