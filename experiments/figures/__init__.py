"""Tables, pictures and numbers of the documents, made from experiments/results and from the code alone."""
