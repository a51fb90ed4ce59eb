"""What a live engine needs of Specmargin, whatever engine it is. Nothing here imports one."""
