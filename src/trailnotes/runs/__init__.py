"""What a method's loop asks for, living in one run directory: `training` with a learner, `adaptation` without."""
