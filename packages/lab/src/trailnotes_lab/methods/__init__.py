"""Methods of adaptation that the entry points `trailnotes.methods` name."""
