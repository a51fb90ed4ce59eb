"""From a request to an answer, for the command line, the web page and Python alike."""
