"""Web site of the shop: the pages of the text environment for a person in a browser."""
