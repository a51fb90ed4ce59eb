"""The web page: FastAPI on loopback. It has no cost model of its own: it asks the one that the verbs use."""
