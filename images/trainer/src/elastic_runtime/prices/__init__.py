"""Price books: what machines cost an hour. One is shipped, as an example."""
