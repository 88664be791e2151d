"""The learner: it trains a model on rows of tokens, whatever method made them."""
