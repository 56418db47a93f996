"""The port mesh: every host dials every other one."""
