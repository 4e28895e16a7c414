"""Storage of jobs: the contract, the in-memory index, and the stores."""
