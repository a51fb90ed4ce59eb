"""What devices and fabrics can do, and how a model is spread over them."""
