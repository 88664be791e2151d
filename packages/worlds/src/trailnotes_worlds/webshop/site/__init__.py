"""The shop for a person in a browser: the pages of the text environment, drawn from the same states."""
