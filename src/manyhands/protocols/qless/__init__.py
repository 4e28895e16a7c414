"""The qless HTTP API: jobs move through queues; workers take them, renew, and turn them in."""
