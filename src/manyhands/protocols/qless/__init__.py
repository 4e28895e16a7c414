"""The qless HTTP API: jobs move through queues; workers take, renew and complete them."""
