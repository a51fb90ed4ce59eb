"""The only modules of this folder that import Specmargin. Rename things there, and only these change."""
