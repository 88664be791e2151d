"""Text search that ranks as Lucene does: BM25 over terms of its English analyzer, in numpy, mapped from disk."""
