"""Who may do what: callers, accounts, and the audit log."""
