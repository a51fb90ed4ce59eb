"""The parts of a model: frozen types, and a reader of Hugging Face configurations."""
