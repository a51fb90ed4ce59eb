"""One module a family of models: a Hugging Face configuration in, layers out."""
