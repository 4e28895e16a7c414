"""A modest run of the engine against its naive model."""

from hypothesis import settings

from tests.simulation.model_engine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
