"""Every host dials every other one."""
