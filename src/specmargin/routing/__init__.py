"""How many distinct experts a step touches: coverage maths and routing profiles."""
