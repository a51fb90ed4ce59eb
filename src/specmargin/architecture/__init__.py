"""What a model is made of: frozen types, and a reader of Hugging Face configurations."""
