"""Tests of tasks, without a server: the pytest plugin, and ``job_for``."""

from manyhands.testing.direct import DirectJob, job_for

__all__ = ["DirectJob", "job_for"]
