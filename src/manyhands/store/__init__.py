"""Where jobs are kept: the contract, the in-memory index, and the stores."""
