"""What all tests share."""

from hypothesis import settings

# A machine that is busy with something else is no defect of what is tested.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
