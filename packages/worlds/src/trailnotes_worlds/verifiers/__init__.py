"""Task sets of verifiers as environments: questions with their rewards, and games in turns with one player."""
