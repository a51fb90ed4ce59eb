"""What the command line, the web page and Python share: from a request to an answer."""
