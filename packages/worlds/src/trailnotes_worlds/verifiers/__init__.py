"""Task sets of verifiers as environments: questions with rewards of their own, and games in turns with one player."""
