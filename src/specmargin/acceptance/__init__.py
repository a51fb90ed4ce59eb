"""What a draft token is worth: survival curves, and the forms in which people give them."""
